"""The renewal to copy from the page for Java: renewed, lost before granted when the network is silent."""

import os
import pathlib
import queue
import re
import shutil
import subprocess
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


@pytest.mark.parametrize("language", [java])
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
