"""The renewals to copy from the pages for Java and Go: renewed, lost before granted when the network is silent."""

import os
import pathlib
import queue
import re
import shutil
import subprocess
import tempfile
import threading
import time

import pytest

from promise import lost_before_granted
from servers import CLIENTS, LONG

JAVA = """
class Main {
    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("user", "postgres");
        Runnable lost = () -> System.out.println("lost " + args[2] + " " + uptime());
        try (HeldLease lease = new HeldLease("jdbc:postgresql://127.0.0.1:" + args[0].split("port=")[1].split(" ")[0]
                + "/postgres", properties, args[2], Duration.ofSeconds(Long.parseLong(args[1])), lost)) {
            System.out.println("held " + args[2] + " " + lease.token);
            while (System.in.read() >= 0) { }
        }
        System.exit(0);
    }

    static String uptime() {
        try {
            return java.nio.file.Files.readString(java.nio.file.Path.of("/proc/uptime")).split(" ")[0];
        } catch (java.io.IOException error) {
            return "inf";
        }
    }
}
"""

GO = """
func main() {
	ttl, _ := time.ParseDuration(os.Args[2] + "s")
	err := WithLease(context.Background(), os.Args[1], os.Args[3], ttl, func(ctx context.Context, owner string) error {
		fmt.Println("held", os.Args[3], 0)
		end := make(chan bool)
		go func() { os.Stdin.Read(make([]byte, 1)); close(end) }()
		select {
		case <-ctx.Done():
			uptime, _ := os.ReadFile("/proc/uptime")
			fmt.Println("lost", os.Args[3], strings.Fields(string(uptime))[0])
			<-end
		case <-end:
		}
		return nil
	})
	if err != nil {
		os.Exit(1)
	}
}
"""


# The same as in test/drivers/bindings/run: to compile Go's own library takes long.
GO_CACHE = os.path.join(tempfile.gettempdir(), "lease_lock_go")


def snippet(page, language):
    text = (CLIENTS.parent / "docs" / page).read_text()
    return re.search(rf"```{language}\n(.*?)```", text, re.DOTALL).group(1)


def need(*names):
    for name in names:
        if not (shutil.which(name) or pathlib.Path(name).exists()):
            pytest.skip(f"no {name}")


def compiled(command, **env):
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **env})
    assert done.returncode == 0, done.stdout + done.stderr


def java(folder):
    driver = "/usr/share/java/postgresql.jar"
    need("javac", driver)
    (folder / "Main.java").write_text(snippet("clients-java.md", "java") + JAVA)
    compiled(["javac", "-d", folder, folder / "Main.java"])
    return ["java", "-cp", f"{folder}:{driver}", "Main"]


def go(folder):
    need("go", "/usr/share/gocode/src/github.com/jackc/pgx/v4")
    source = snippet("clients-ruby-go.md", "go").replace('\t"os"\n', '\t"os"\n\t"strings"\n')
    (folder / "main.go").write_text(source + GO)
    compiled(["go", "build", "-o", folder / "main", folder / "main.go"],
             GOPATH="/usr/share/gocode", GO111MODULE="off", GOFLAGS="", GOCACHE=GO_CACHE)
    return [folder / "main"]


def plain(dsn):
    """As the pages' programs take it apart."""
    return dsn.replace("'", "")


class Holder:
    """A process that holds a lease until its standard input is closed. It prints what happens to it."""

    def __init__(self, command, dsn, ttl, resource):
        self.process = subprocess.Popen(
            [*command, dsn, str(ttl), resource], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines = queue.Queue()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        try:
            assert self.lines.get(timeout=LONG)[:2] == ["held", resource]
        except BaseException:
            self.clean_up()
            raise

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.split())

    def lost(self):
        word, resource, moment = self.lines.get(timeout=LONG)
        assert word == "lost"
        return resource, float(moment)

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(LONG) == 0

    def clean_up(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.mark.parametrize("language", [java, go])
def test_page(server, proxy, slow, tmp_path, language):
    command, ttl = language(tmp_path), 15 * slow
    holder = Holder(command, plain(server.dsn(proxy.port)), ttl, "page")
    try:
        for _ in range(32):
            time.sleep(0.5 * slow)
            assert server.is_held("page")
        lost_before_granted(server, proxy, ["page"], holder.lost)
    finally:
        holder.clean_up()
    # The first lease has another owner now.
    holder = Holder(command, plain(server.dsn()), ttl, "other")
    holder.end()
    assert not server.is_held("other") and holder.lines.empty()
    holder.clean_up()
