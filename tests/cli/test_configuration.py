"""`trouper.toml`, and models and tools by name: what they give, and one clear line for each mistake."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from trouper import Budget, ConfigError, Limits, TrouperError, UsageError
from trouper.cli.choices import model_named, tools_named
from trouper.cli.configuration import read_configuration
from trouper.core.settings import Deadlines
from trouper.models.http_model import HttpModel


def test_no_file_means_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TROUPER_MODEL", raising=False)
    configuration = read_configuration(tmp_path)
    assert not configuration.found and configuration.model_name(None) == "simulated"


def test_a_file_says_it_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trouper.toml").write_text(
        """
        model = "gemini:gemini-3-flash"
        system = "Be brief."
        tools = ["default", "run_command"]
        durability = "write"
        [budget]
        tokens = 1000
        inline_s = 1
        [limits]
        max_steps = 3
        on_restart = "resume"
        [limits.deadlines]
        idle_s = 5
        [policy]
        ask = ["run_command"]
        allow = ["*"]
        """
    )
    monkeypatch.delenv("TROUPER_MODEL", raising=False)
    found = read_configuration(tmp_path)
    assert found.model_name(None) == "gemini:gemini-3-flash" and found.model_name("simulated") == "simulated"
    monkeypatch.setenv("TROUPER_MODEL", "openai:x")
    assert found.model_name(None) == "openai:x"
    assert found.system == "Be brief." and found.tools == ("default", "run_command") and found.durability == "write"
    assert found.budget == Budget(tokens=1000, inline_s=1.0)
    assert found.limits == Limits(max_steps=3, on_restart="resume", deadlines=Deadlines(idle_s=5.0))
    assert [(rule.tool, rule.effect) for rule in found.policies] == [("run_command", "ask"), ("*", "allow")]


@pytest.mark.parametrize("kind", ["pipe", "directory", "terminal", "zeros"])
def test_what_is_no_file_of_its_name_is_named_and_neither_read_nor_waited_for(
    trouper, tmp_path: Path, kind: str
) -> None:
    """Security, paths: a terminal ended doctor as a bug of Trouper's."""
    path = tmp_path / "trouper.toml"
    ends: tuple[int, ...] = ()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "terminal":
            ends = os.openpty()
            path.symlink_to(os.ttyname(ends[1]))
        case _:
            path.symlink_to("/dev/zero")
    what = kind if kind in ("pipe", "directory") else "device"
    try:
        with pytest.raises(ConfigError, match=f"is a {what}, not a file"):
            read_configuration(tmp_path)
        found = trouper("doctor", "--root", tmp_path)
    finally:
        for end in ends:
            os.close(end)
    assert found.code == 1 and "not a file" in found.out and "journal:" in found.out


@pytest.mark.parametrize("text", ["[policy]\nallow = []", "[policy]\ndeny = []\nask = []"])
def test_a_policy_without_rules_allows_nothing(tmp_path: Path, text: str) -> None:
    """T4: a list that matches nothing denies."""
    (tmp_path / "trouper.toml").write_text(text)
    (rule,) = read_configuration(tmp_path).policies
    assert (rule.tool, rule.effect) == ("*", "deny")


TOOLS = """
from trouper import tool

@tool
def delete_account(name: str) -> str:
    "Delete an account for good."
    print(f"deleted {name}")
    return name
"""


def policy_of(root: Path, *lines: str) -> None:
    (root / "mytools.py").write_text(TOOLS)
    (root / "trouper.toml").write_text("\n".join(["tools = ['default', 'mytools.py']", "[policy]", *lines]))


@pytest.mark.parametrize("command", [["run", "run delete_account name=ada"], ["chat"]])
def test_a_rule_for_a_tool_that_is_not_there_is_a_mistake(trouper: Any, tmp_path: Path, command: list[str]) -> None:
    """T4: it guards nothing, and what it was to guard would run."""
    policy_of(tmp_path, "ask = ['delete_acount']", "allow = ['*']")
    done = trouper(*command, "--root", tmp_path, "--model", "simulated")
    assert done.code == 78 and "deleted" not in done.out
    assert "trouper.toml', line 3: policy.ask has a rule for 'delete_acount', but there is no such tool" in done.err
    assert "did you mean 'delete_account'? If it may be missing, add it to policy.absent" in done.err
    found = trouper("doctor", "--root", tmp_path)
    assert found.code == 1 and "did you mean 'delete_account'?" in found.out


@pytest.mark.parametrize(
    ("lines", "asked"),
    [
        (["deny = ['delete_account', 'run_command', 'spawn_background', 'tool_search']"], None),
        (["deny = ['delete_account']"], ["default"]),
        (["deny = ['delete_acount']", "absent = ['delete_acount']"], None),
        (["absent = ['delete_acount']"], None),
    ],
    ids=["built in", "replaced on the command line", "absent", "absent, and no rules"],
)
def test_a_rule_may_be_for_a_tool_that_is_built_in_replaced_or_absent(
    tmp_path: Path, lines: list[str], asked: list[str] | None
) -> None:
    """T4"""
    policy_of(tmp_path, *lines)
    found = read_configuration(tmp_path)
    assert found.policies_for(found.tools_made(asked)) == found.policies
    assert bool(found.policies) == (len(lines) == 2 or "deny" in lines[0])


def test_a_rule_for_a_tool_of_a_file_that_cannot_be_loaded_holds_up_no_others(trouper: Any, tmp_path: Path) -> None:
    """T4: the command line has named others, so that what the file needs need not be there. What looks misspelt is a mistake all the same."""
    policy_of(tmp_path, "ask = ['deploy']", "allow = ['*']")
    others = tmp_path / "others.py"
    others.write_text(TOOLS)
    (tmp_path / "mytools.py").write_text("import what_is_installed_elsewhere")
    agent = ("--root", tmp_path, "--model", "simulated")
    done = trouper("run", "hello", *agent, "--tools", others)
    assert done.code == 0 and done.out == "You said: hello\n"
    assert trouper("run", "hello", *agent).code == 78
    (tmp_path / "trouper.toml").write_text("tools = ['mytools.py']\n[policy]\nask = ['delete_acount']")
    done = trouper("run", "hello", *agent, "--tools", others)
    assert done.code == 78 and "line 3" in done.err and "did you mean 'delete_account'?" in done.err


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "trouper.toml").write_text("system = 'Be brief.'", encoding="utf-8-sig")
    assert read_configuration(tmp_path).system == "Be brief."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model = ", "is not TOML"),
        ("mode = 'x'", "mode is no setting"),
        ("model = 3", "has to be text"),
        ("tools = 'default'", "has to be a list"),
        ("durability = 'maybe'", "'fsync'"),
        ("[budget]\ntoken = 3", "budget.token is no setting"),
        ("[budget]\ntokens = 'many'", "a whole number"),
        ("[budget]\ntokens = -1", "a whole number from 0 up"),
        ("[limits.deadlines]\nidle_s = -1", "a number from 0 up"),
        ("[limits.compaction]\nshare = 85", "share=85.0 makes no sense; give a number of at least 0 and at most 1"),
        (f"[limits]\ngrace_s = {'9' * 400}", "9... makes no sense; give a number"),
        ("[limits]\nparallel_tool_calls = 1", "true or false"),
        ("[limits.deadlines]\nidle = 3", "limits.deadlines.idle is no setting"),
        ("[policy]\nforbid = ['x']", "no effect"),
        ("[policy]\nask = 'x'", "a list"),
        ("[policy]\nask = ['wip*']", "line 2: a rule is for tool='wip*', but only '*' by itself is a pattern"),
        ("[policy]\nabsent = 'x'", "policy.absent is 'x'; it has to be a list"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "trouper.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_configuration(tmp_path)
    assert words in caught.value.message and "trouper.toml" in caught.value.message
    assert caught.value.exit_code == 78


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# a comment\n\nmode = 'x'", 3),
        ("[limits]\nmax_steps = 3\nparallel_calls = 0", 3),
        ('system = """\nfoo = 3\n"""\nfoo = 3', 4),
        ("tools = [\n  'add',\n  3,\n]", 1),
        ("[limits.deadlines]\nidle = 3", 2),
        ("budget.tokens = 'x'", 1),
        ("[budget]\ntokens = 3\n\n[policy]\nforbid = ['x']", 5),
        ("model =\nsystem = 'x'", 1),
        ("system = \"a # [ \\\" b\" # ['''\r\nmode = 1", 2),
        ("""system = '''\n[limits]\n''''\nlimits = {max_steps = 3, deadlines = {idle = 3}}""", 4),
        ("[limits.deadlines]\n[policy]\n[limits]\n'idle' = 3", 4),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / "trouper.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_configuration(tmp_path)
    assert f"line {line}" in caught.value.message


def test_a_mistake_is_found_in_a_file_of_any_length_that_is_read_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took a parse for each line before it, minutes in all."""
    text = "tools = [\n" + '"add",\n' * 3_000 + "]\nbogus = 1\n"
    (tmp_path / "trouper.toml").write_text(text)
    parsed: list[int] = []
    parse = tomllib.loads

    def counted(part: str) -> dict[str, Any]:
        parsed.append(len(part))
        return parse(part)

    monkeypatch.setattr(tomllib, "loads", counted)
    with pytest.raises(ConfigError, match="line 3003: bogus is no setting"):
        read_configuration(tmp_path)
    assert sum(parsed) <= 3 * len(text)


def test_a_name_that_makes_no_sense_is_a_mistake_of_the_place_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line's own is 2; a file's or a variable's is 78, and says where to look."""
    monkeypatch.delenv("TROUPER_MODEL", raising=False)
    (tmp_path / "trouper.toml").write_text("system = 'x'\nmodel = 'llama'\ntools = ['reed_file']")
    found = read_configuration(tmp_path)
    for make, line in ((found.model_made, 2), (found.tools_made, 3)):
        with pytest.raises(ConfigError, match=f"trouper.toml', line {line}: there"):
            make()
    monkeypatch.setenv("TROUPER_MODEL", "gpt")
    with pytest.raises(ConfigError, match=r"^TROUPER_MODEL: there is no model 'gpt'"):
        found.model_made()
    for wrong in (lambda: found.model_made("llama"), lambda: found.tools_made(["reed_file"])):
        with pytest.raises(UsageError) as caught:
            wrong()
        assert caught.value.exit_code == 2
    assert found.model_made("simulated").name.startswith("simulated")
    assert [tool.name for tool in found.tools_made(["add"])] == ["add"]


def test_an_empty_name_is_a_mistake_and_not_the_simulated_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of `--model "$MODEL"` in a script that has not set it. A variable of ours that is empty is not set, as is usual."""
    monkeypatch.setenv("TROUPER_MODEL", "")
    assert read_configuration(tmp_path).model_made().name.startswith("simulated")
    (tmp_path / "trouper.toml").write_text("model = ''")
    found = read_configuration(tmp_path)
    with pytest.raises(ConfigError, match=r"line 1: there is no model ''; write gemini:NAME"):
        found.model_made()
    with pytest.raises(UsageError, match=r"^there is no model ''"):
        found.model_made("")


def test_models_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("GEMINI_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(variable, "a-key-for-tests")
    assert model_named("simulated").name.startswith("simulated")
    assert model_named("gemini:gemini-3-flash").name == "gemini:gemini-3-flash"
    assert "gpt-x" in model_named("openai:gpt-x").name
    assert "claude-x" in model_named("anthropic:claude-x").name
    for wrong in ("llama", "openai", "anthropic:", "", "simulated:fast"):
        with pytest.raises(UsageError):
            model_named(wrong)


def test_a_model_without_its_key_says_which_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ConfigError, match="GEMINI_API_KEY"):
        model_named("gemini:gemini-3-flash")


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("gemini:gemini-3-flash", "GOOGLE_GEMINI_BASE_URL"),
        ("openai:gpt-x", "OPENAI_BASE_URL"),
        ("anthropic:claude-x", "ANTHROPIC_BASE_URL"),
    ],
)
def test_a_model_by_name_asks_the_server_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, name: str, variable: str
) -> None:
    """M3: the address can be given, on the command line by the variable of the provider's own client."""
    for key in ("GEMINI_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(key, "k")
    monkeypatch.setenv(variable, "http://127.0.0.1:4711")
    model = model_named(name)
    assert isinstance(model, HttpModel) and model._endpoint.base_url == "http://127.0.0.1:4711"


def test_tools_by_name_file_and_module(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from trouper import tool\n@tool\ndef zebra() -> str:\n    'z'\n    return ''\n@tool\ndef ant() -> str:\n    'a'\n    return ''\n"
    )
    assert [tool.name for tool in tools_named([str(tmp_path / "mine.py")])] == ["zebra", "ant"]
    assert [tool.name for tool in tools_named(["mine.py"], tmp_path)] == ["zebra", "ant"]
    assert [tool.name for tool in tools_named(["add", "run_command"])] == ["add", "run_command"]
    assert len(tools_named(["default"])) == 18


def test_a_file_of_tools_is_that_of_the_root_that_names_it_and_not_what_stands_where_we_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Security: whoever's directory it is that we happen to stand in does not decide what runs."""
    root, here = tmp_path / "root", tmp_path / "here"
    for place, name in ((root, "of_the_root"), (here, "of_here")):
        place.mkdir(mode=0o700)
        (place / "mine.py").write_text(
            f"from trouper import tool\n@tool\ndef {name}() -> str:\n    'x'\n    return ''\n"
        )
    (root / "trouper.toml").write_text("tools = ['mine.py']")
    monkeypatch.chdir(here)
    configuration = read_configuration(root)
    assert [tool.name for tool in configuration.tools_made()] == ["of_the_root"]
    assert [tool.name for tool in configuration.tools_made(["mine.py"])] == ["of_here"]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"there is no file 'mine\.py'"):
        configuration.tools_made(["mine.py"])


@pytest.mark.parametrize(
    "name", ["nonsense", "reed_file", "missing.py", "no.such.module", "json", "", ".json", "..", "a..b", "__main__"]
)
def test_tools_that_are_not_there_are_one_clear_error(name: str) -> None:
    with pytest.raises(TrouperError) as caught:
        tools_named([name])
    assert repr(name) in caught.value.message


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("1 / 0\n", "ZeroDivisionError: division by zero; correct"),
        ("import sys\nsys.exit()\n", "SystemExit; correct"),  # A script, that was never meant to be imported.
        ("raise SystemExit(3)\n", "SystemExit: 3; correct"),
    ],
)
def test_tools_that_fail_to_load_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    (tmp_path / "broken_tools.py").write_text(program)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in (str(tmp_path / "broken_tools.py"), "broken_tools"):
        with pytest.raises(ConfigError) as caught:
            tools_named([name])
        assert repr(name) in caught.value.message and words in caught.value.message


KEY = "sk-ant-api03-" + "Ab1" * 20


@pytest.mark.parametrize(
    "text", [f"model = '{KEY}'", f"[budget]\ntokens = '{KEY}'", f"tools = ['{KEY}']", f"durability = '{KEY}'"]
)
def test_a_key_in_the_wrong_place_is_not_told(trouper, tmp_path: Path, text: str) -> None:
    """I36: what is said of a setting goes into the logs of whoever builds and tests."""
    (tmp_path / "root").mkdir(mode=0o700)
    (tmp_path / "root" / "trouper.toml").write_text(text)
    refused, found = trouper("run", "hi", "--root", tmp_path / "root"), trouper("doctor", "--root", tmp_path / "root")
    assert refused.code == 78 and "trouper.toml', line" in refused.err and "[redacted]" in refused.err
    assert found.code == 1 and "[redacted]" in found.out
    assert KEY[:20] not in refused.err + found.out


def test_whoever_writes_a_key_into_the_file_hears_where_keys_come_from(tmp_path: Path) -> None:
    (tmp_path / "trouper.toml").write_text(f"OPENAI_API_KEY = '{KEY}'")
    with pytest.raises(ConfigError, match=r"OPENAI_API_KEY is no setting.*keys come from the environment") as raised:
        read_configuration(tmp_path)
    assert KEY not in raised.value.message


@pytest.mark.parametrize("text", ["x = " + "[" * 5_000, "x = " + "{a=" * 5_000])
def test_a_file_that_is_nested_too_deep_is_one_line_and_78(trouper, tmp_path: Path, text: str) -> None:
    (tmp_path / "trouper.toml").write_text(text)
    tmp_path.chmod(0o700)
    done = trouper("run", "hi", "--root", tmp_path)
    assert done.code == 78 and "nested too deep" in done.err and done.err.count("\n") == 1
    found = trouper("doctor", "--root", tmp_path)
    assert found.code == 1 and "nested too deep" in found.out and "owner" in found.out


def test_a_mistake_that_can_just_be_parsed_is_told_as_any_other(tmp_path: Path) -> None:
    """Where it stands, and what it is, takes a few calls more than the parser did."""
    for depth in range(300, 600):
        (tmp_path / "trouper.toml").write_text(f"tools = {'[' * depth}{']' * depth}")
        with pytest.raises(ConfigError, match=r"has to be text|nested too deep"):
            read_configuration(tmp_path)


def test_tools_that_cannot_be_had_are_told_with_the_line_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "trouper.toml").write_text("model = 'simulated'\ntools = ['os.path']")
    with pytest.raises(ConfigError, match=r"trouper\.toml', line 2: 'os\.path' defines no tools"):
        read_configuration(tmp_path).tools_made()


def test_doctor_says_what_to_do_about_a_setting_of_any_length(trouper, tmp_path: Path) -> None:
    (tmp_path / "trouper.toml").write_text(f"budget = '{'x ' * 100_000}'")
    found = trouper("doctor", "--root", tmp_path).out
    assert len(found) < 5_000 and "it has to be a table" in found
