"""The package builds, installs into an empty environment, and has its types and its entry point."""

import pathlib
import shutil
import subprocess
import sys

import pytest

from conftest import CLIENTS


def test_package_installs(server, tmp_path):
    pytest.importorskip("setuptools")
    pytest.importorskip("wheel")
    source = tmp_path / "source"
    shutil.copytree(CLIENTS / "python", source)

    def run(*command):
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        if "ensurepip is not available" in done.stdout or "No module named pip" in done.stderr:
            pytest.skip("no venv or pip (Debian: python3-venv)")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # Without the network: setuptools and psycopg are those of the system.
    run(sys.executable, "-m", "venv", "--system-site-packages", "clean")
    python = str(tmp_path / "clean/bin/python")
    run(python, "-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", "wheels", str(source))
    run(python, "-m", "pip", "install", "--no-index", "--no-deps", *map(str, (tmp_path / "wheels").glob("*.whl")))
    where = run(python, "-c", f"""
import lease_lock
with lease_lock.Leases("{server.dsn()}") as leases, leases.hold("installed"):
    print(lease_lock.__file__)""").strip()
    folder = pathlib.Path(where).parent
    assert folder.is_relative_to(tmp_path / "clean") and (folder / "py.typed").exists()
    # Newer versions of setuptools put it into a folder of its own.
    assert list((tmp_path / "clean").glob("lib/*/site-packages/lease_lock-*.dist-info/**/LICENSE"))
    assert run(python, "-c", """
from importlib.metadata import entry_points
print([entry.value for entry in entry_points(group="tooz.backends") if entry.name == "postgresql-lease"])
""").strip() == "['lease_lock.tooz:LeaseDriver']"
