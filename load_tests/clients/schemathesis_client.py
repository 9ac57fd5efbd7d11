"""schemathesis, unmodified, against the OpenAPI document of a running paravt: no 5xx, and no answer that the document doesn't
describe. See schemathesis.toml for what it is told, and suite.py for how it is called.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from suite import Suite

suite = Suite("schemathesis")
HERE = pathlib.Path(__file__).parent


def run(*options):
    root = suite.base_url.removesuffix("/v1")
    program = pathlib.Path(sys.executable).with_name("schemathesis")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [program, "--no-color", "--config-file", HERE / "schemathesis.toml", "run", f"{root}/openapi.json",
             "--continue-on-failure", "--seed", "1", *options],
            cwd=folder, env=os.environ | {"SCHEMATHESIS_HOOKS": str(HERE / "schemathesis_hooks.py")}, capture_output=True,
            text=True, timeout=3000,
        )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-500:]
    cases = re.search(r"^ *(\d+ generated.*)$", done.stdout, re.M)
    tested = re.search(r"Tested: *(\d+)", done.stdout)
    return f"{tested.group(1)} operations, {cases.group(1)}"


for phase in ("examples", "coverage"):

    @suite.check(f"phase {phase}")
    def _(phase=phase):
        return run("--phases", phase)


@suite.check("phase fuzzing, 100 cases an operation")
def _():
    return run("--phases", "fuzzing", "--max-examples", "100")


suite.end()
