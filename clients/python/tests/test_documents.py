"""The programs in docs/programs.md, as they are printed."""

import os
import re
import signal
import subprocess
import sys

from servers import CLIENTS, LONG, wait_until

TEXT = (CLIENTS.parent / "docs" / "programs.md").read_text()
SCHEMA = "\n".join(re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL))
IMPORT, TASK = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def start(server, folder, source):
    (folder / "program.py").write_text(source)
    environment = {**os.environ, "PYTHONPATH": str(CLIENTS / "python"), "PGHOST": "127.0.0.1",
                   "PGPORT": str(server.port), "PGUSER": "postgres", "PGDATABASE": "postgres"}
    with open(folder / "output", "w") as output:
        return subprocess.Popen([sys.executable, folder / "program.py"], env=environment, stdout=output)


def test_work_survives_a_deploy(server, tmp_path):
    """SIGTERM releases the lease, SIGKILL does not; each next process goes on where the last one stopped."""
    server.sql(SCHEMA)

    def progress():
        return server.value("SELECT done FROM import_progress")

    def run(last):
        return start(server, tmp_path, IMPORT.replace("LAST = 1000", f"LAST = {last}").replace("ttl=30", "ttl=1"))

    for end in signal.SIGTERM, signal.SIGKILL:
        before, process = progress(), run(10**9)
        wait_until(lambda before=before: progress() > before)
        process.send_signal(end)
        assert process.wait(LONG) == (0 if end == signal.SIGTERM else -end)
        assert server.is_held("import:prices") == (end == signal.SIGKILL)
    last = progress() + 10
    assert run(last).wait(LONG) == 0
    assert progress() == server.value("SELECT max(number) FROM line") == last


def test_a_waiting_program_ends_by_sigterm(server, tmp_path):
    server.sql("SELECT lease_acquire('import:prices', '1 hour', 'other')")
    process = start(server, tmp_path, IMPORT)
    wait_until(lambda: server.value("SELECT count(*) FROM lease_waiters") == 1)
    process.terminate()
    assert process.wait(LONG) == 0
    server.sql("SELECT lease_release('import:prices', 'other')")


def test_a_task_is_done_once(server, tmp_path):
    server.sql("CREATE TABLE invoice (id int, sent boolean)")
    server.sql("INSERT INTO invoice VALUES (17, false)")
    process = start(server, tmp_path, TASK)
    assert process.wait(LONG) == 0 and (tmp_path / "output").read_text() == "True False\n"
