"""One virtual environment for each framework, made once from package names, and what each of them weighs."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ENVS = HERE / ".envs"


@dataclass(frozen=True)
class Environment:
    """`base` is what a user installs to begin with, and is weighed; `more` is what single works need on top."""

    name: str
    base: tuple[str, ...]
    more: tuple[str, ...] = ()
    source: Path | None = None  # code outside site-packages (an editable install) that counts as installed

    @property
    def home(self) -> Path:
        return ENVS / self.name

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    @property
    def _stamp(self) -> Path:
        return self.home / "bench.json"

    def _wanted(self) -> str:
        wanted = [sys.version, *self.base, *self.more]
        if self.source:
            wanted.append((ROOT / "pyproject.toml").read_text())  # its dependencies are ours
        return hashlib.sha256("\n".join(wanted).encode()).hexdigest()

    def make(self, *, fresh: bool = False) -> None:
        """Create the environment unless it is there already, from the same Python and the same requirements."""
        if not fresh and self._stamp.exists() and json.loads(self._stamp.read_text())["wanted"] == self._wanted():
            return
        print(f"making the environment of {self.name} ...", file=sys.stderr, flush=True)
        venv.create(self.home, clear=True, symlinks=True)  # no pip inside: it would be weighed with the rest
        self._install(self.base)
        size, packages = self._weigh()
        self._install(self.more)
        self._stamp.write_text(json.dumps({"wanted": self._wanted(), "bytes": size, "packages": packages}))

    def _install(self, what: tuple[str, ...]) -> None:
        if not what:
            return
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*pip, "install", *what], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(
                f"{' '.join(what)!r} could not be installed for {self.name!r}:\n{done.stderr}\n"
                "A package index must be within reach; run again when it is."
            )

    def _weigh(self) -> tuple[int, int]:
        site = next(self.home.glob("lib/python*/site-packages"))
        places = [site, *([self.source] if self.source else [])]
        files = [file for place in places for file in place.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files if "__pycache__" not in file.parts)
        return size, len(list(site.glob("*.dist-info")))

    def weight(self) -> tuple[float, int]:
        """Megabytes and distributions of the base install, without compiled caches."""
        stamp = json.loads(self._stamp.read_text())
        return stamp["bytes"] / 1e6, stamp["packages"]


OURS = "trouper"
FLOOR = "floor"
ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment(OURS, ("--editable", str(ROOT)), source=ROOT / "src" / "trouper"),
        Environment("pydantic-ai", ("pydantic-ai-slim",)),
        Environment("openai-agents", ("openai-agents",)),
        Environment("google-adk", ("google-adk",)),
        Environment("langgraph", ("langgraph",), more=("langgraph-checkpoint-sqlite",)),
        Environment(FLOOR, ("trio",)),
    )
}
PLOT = Environment("plot", ("matplotlib",))
