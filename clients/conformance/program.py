"""The test program of a client, as README.md describes it."""

import itertools
import json
import os
import pathlib
import queue
import subprocess
import sys
import threading

import pytest

import servers
from servers import CLIENTS, LONG

PROGRAMS = {
    "python": [sys.executable, CLIENTS / "python/conformance"],
    "asyncio": [sys.executable, CLIENTS / "python/conformance", "--asyncio"],
    **{path.parent.name: [path] for path in sorted(CLIENTS.glob("*/conformance"))
       if path.is_file() and path.parent.name != "python"},
}


class Failure(Exception):
    """The error that a command was answered with."""

    def __init__(self, error):
        super().__init__(json.dumps(error))
        self.name, self.data = error["name"], error

    def __getattr__(self, name):
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


class Command:
    def __init__(self, program, number):
        self.program, self.id = program, number
        self.answered = threading.Event()
        self.line = None

    def answer(self, limit=LONG):
        assert self.answered.wait(limit), f"no answer within {limit} s"
        error = self.line.get("error")
        if error is None:
            return self.line.get("ok")
        if error["name"] == "Unsupported":
            pytest.skip(f"the client does not have this: {error.get('text')}")
        raise Failure(error)

    def error(self, limit=LONG):
        with pytest.raises(Failure) as failure:
            self.answer(limit)
        return failure.value


class Program:
    """A running program. Called with a command, it returns the answer; start() returns at once."""

    def __init__(self, command, env, stderr=None):
        self.process = subprocess.Popen([*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
                                        text=True, env={**os.environ, **env})
        self.numbers, self.commands = itertools.count(1), {}
        self.opened = set()     # clients
        self.events = queue.Queue()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for text in self.process.stdout:
            line = json.loads(text)
            if "event" in line:
                self.events.put(line)
            else:
                command = self.commands.pop(line["id"])
                command.line = line
                command.answered.set()
        for command in list(self.commands.values()):
            command.line = {"error": {"name": "Died"}}
            command.answered.set()

    def start(self, do, **args):
        command = Command(self, next(self.numbers))
        self.commands[command.id] = command
        self.process.stdin.write(json.dumps({"id": command.id, "do": do, **args}) + "\n")
        self.process.stdin.flush()
        return command

    def __call__(self, do, limit=LONG, **args):
        return self.start(do, **args).answer(limit)

    def error(self, do, limit=LONG, **args):
        return self.start(do, **args).error(limit)

    def event(self, name, limit=LONG, **data):
        """The next event is this one."""
        event = self.events.get(timeout=limit)
        assert event["event"] == name and {**event, **data} == event, event
        return event

    # Shorter

    def open(self, source, client="a", **options):
        if isinstance(source, str):
            source = {"kind": "conninfo", "conninfo": source}
        if servers.edition == "portable":
            options.setdefault("schema", "lease")
        self.opened.add(client)
        return self("open", client=client, source=source, options=options)

    def start_hold(self, resource, lease=None, client="a", **options):
        return self.start("hold", client=client, lease=lease or resource, resource=resource, options=options)

    def hold(self, resource, lease=None, client="a", **options):
        """Granted. Without a wait, a machine that is very busy may not be quick enough."""
        return self.start_hold(resource, lease, client, **{"wait": LONG, **options}).answer()

    def try_hold(self, resource, lease=None, client="a", **options):
        return self("try", client=client, lease=lease or resource, resource=resource, options=options)

    def end(self):
        """As the language ends a program."""
        self.process.stdin.close()
        assert self.process.wait(LONG) == 0

    def is_as_new(self):
        """Close what a test has opened. False if something is left: then the program is no good for another test."""
        try:
            for client in list(self.opened):
                assert self("close", client=client, timeout=1, limit=20) == []
        except (Exception, pytest.skip.Exception):
            return False
        self.opened.clear()
        self.events = queue.Queue()
        return not self.commands

    def clean_up(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        # What libfaketime leaves when its process is killed.
        for name in ("faketime_shm", "sem.faketime_sem"):
            pathlib.Path(f"/dev/shm/{name}_{self.process.pid}").unlink(missing_ok=True)
        self.reader.join()
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.stdout.close()
