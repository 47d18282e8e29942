"""The project's own files agree with each other."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dflash.lab.config import valid_names

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "results/README.md")
LINKED = (*DOCUMENTS, "CHANGELOG.md", "docs/switches.md", "docs/statistics.md")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pins(name: str) -> dict[str, str]:
    """Canonical name -> version of a file of exact pins; anything else in it is an error."""
    lines = [line for line in read(name).splitlines() if line and not line.startswith("#")]
    found = [re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!+]+)", line) for line in lines]
    bad = [line for line, match in zip(lines, found, strict=True) if match is None]
    assert not bad, f"{name} has lines that are not NAME==VERSION: {bad}"
    return {canonicalize_name(match[1]): match[2] for match in found if match}


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", read("Makefile"), flags=re.MULTILINE))


def make(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run make with an environment of its own, so that no outer make or option leaks in."""
    command = ["make", *arguments]
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_pins_satisfy_the_ranges(extra):
    pinned = pins("constraints.txt")
    for line in EXTRAS[extra] if extra else PROJECT["dependencies"]:
        requirement = Requirement(line)
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{line} does not admit {version}"


def test_constraints_cover_what_the_runtime_pulls_in():
    """Every package that an installed dependency requires, to any depth, is pinned."""
    pinned = pins("constraints.txt")
    todo, seen = [Requirement(line) for line in PROJECT["dependencies"]], set()
    while todo:
        name = canonicalize_name(todo.pop().name)
        if name in seen:
            continue
        seen.add(name)
        required = map(Requirement, importlib.metadata.requires(name) or [])
        todo += [r for r in required if r.marker is None or r.marker.evaluate({"extra": ""})]
    cuda = {name for name in seen if name.startswith(("nvidia-", "cuda-", "triton"))}
    assert seen - cuda - pinned.keys() == set()


def test_asset_pins_are_the_packages_that_are_installed():
    for name, version in pins("assets.txt").items():
        assert importlib.metadata.version(name) == version


def test_assets_are_no_dependencies():
    """Their own dependencies are heavy and unwanted, so pip must never resolve them."""
    assert not pins("assets.txt").keys() & pins("constraints.txt").keys()


@pytest.mark.parametrize("name", ["constraints.txt", "assets.txt", "pyproject.toml", "Makefile"])
def test_no_index_and_no_absolute_path(name):
    assert not re.search(
        r"index-url|find-links|https?://|file:|(^|\s)/(home|root|opt|tmp|usr)/", read(name)
    )


def test_one_version():
    version = PROJECT["version"]
    assert yaml.safe_load(read("CITATION.cff"))["version"] == version
    newest = re.search(r"^## \[?([^\]\s]+)", read("CHANGELOG.md"), flags=re.MULTILINE)
    assert newest is not None
    assert newest[1] == version
    literals = [
        path.relative_to(ROOT)
        for path in (ROOT / "dflash").rglob("*.py")
        if re.search(r"""^__version__\s*=\s*["']""", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert not literals, "the version is written in pyproject.toml alone"


def test_the_installed_distribution_is_this_one():
    assert importlib.metadata.version("dflash-lab") == PROJECT["version"]


def test_the_package_is_typed_and_the_script_exists():
    assert (ROOT / "dflash" / "py.typed").is_file()
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="dflash")
    assert callable(script.load())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documented_make_commands_exist(document):
    used = set(re.findall(r"(?:^|`|\$ )make ([a-z][a-z-]*)", read(document), flags=re.MULTILINE))
    assert used, f"{document} names no make command"
    assert used <= targets()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documented_experiments_exist(document):
    for name in re.findall(r"EXP=([a-z_]+)", read(document)):
        if name != "my_question":  # the one the reader is told to write
            assert (ROOT / "experiments" / "ablation" / f"{name}.yaml").is_file(), name


@pytest.mark.parametrize("document", LINKED)
def test_links_lead_somewhere(document):
    for link in re.findall(r"\]\(([^)#\s]+)", read(document)):
        if "://" not in link:
            assert (ROOT / document).parent.joinpath(link).exists(), link


def test_the_page_of_switches_is_complete():
    """docs/switches.md lists exactly the drafter's switches and the ones of anchors and loss."""
    listed = set(re.findall(r"^\| `([a-z_.]+)` \|", read("docs/switches.md"), flags=re.MULTILINE))
    wanted = re.compile(r"drafter\..*|train\.anchors|train\.loss\..*")
    assert listed == {name for name in valid_names() if wanted.fullmatch(name)}


def test_help_lists_every_public_target():
    text = make("help").stdout
    assert {
        name for name in targets() if not re.search(rf"^  {name} ", text, re.MULTILINE)
    } == set()


@pytest.mark.parametrize("verb", ["ablate", "explain", "cost"])
def test_a_verb_without_its_experiment_is_one_line_and_exit_2(verb):
    result = make(verb)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert "EXP is missing" in result.stderr
    for path in (ROOT / "experiments" / "ablation").glob("*.yaml"):
        assert path.stem in result.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with our Makefile and a dflash command that prints its arguments."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "assets.txt"):
        (tmp_path / name).write_text(read(name), encoding="utf-8")
    binary = tmp_path / ".venv" / "bin"
    binary.mkdir(parents=True)
    fake = binary / "dflash"
    fake.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:])\n", encoding="utf-8")
    fake.chmod(0o755)
    for stamp in (".stamp-venv", ".stamp-run"):
        (binary.parent / stamp).touch()
    return tmp_path


@pytest.mark.parametrize(
    "prompt",
    ["plain", "--flag", 'It\'s "5 $HOME" $(id) `id`', "100% a#b \\n * ~", "two\nlines", "a,b) (c"],
)
def test_a_prompt_arrives_unchanged(checkout, prompt):
    result = make("generate", f"PROMPT={prompt}", folder=checkout)
    assert result.stdout.strip() == str(["generate", "--", prompt]), result.stderr


def test_options_become_overrides(checkout):
    settings = 'drafter.num_layers=3 taps=[1,8] note="a  b" glob=* ~data.eval.gsm8k end=a;b'
    options = ["EXP=no_qknorm", "TARGET=t", "TIER=smoke", "SEEDS=0, 1", f"SET={settings}"]
    result = make("ablate", *options, folder=checkout)
    expected = ["target=t", "tier=smoke", "seeds=[0,1]", "drafter.num_layers=3", "taps=[1,8]"]
    expected += ["note=a  b", "glob=*", "~data.eval.gsm8k", "end=a;b"]
    assert result.stdout.strip() == str(["ablate", "no_qknorm", *expected]), result.stderr


@pytest.mark.parametrize("verb", ["explain", "cost"])
def test_plans_take_options_and_arguments(checkout, verb):
    result = make(verb, "EXP=taps", "TARGET=t", "ARGS=--price 2", folder=checkout)
    assert result.stdout.strip() == str([verb, "taps", "target=t", "--price", "2"]), result.stderr


def test_a_quota_reaches_the_environment(checkout):
    binary = checkout / ".venv" / "bin" / "dflash"
    binary.write_text(f"#!{sys.executable}\nimport os\nprint(os.environ.get('DFLASH_QUOTA'))\n")
    quota = "gpu_hours=10 disk_gb=200"
    for verb in ("ablate", "cost"):
        assert make(verb, "EXP=taps", f"QUOTA={quota}", folder=checkout).stdout.strip() == quota
        assert make(verb, "EXP=taps", folder=checkout).stdout.strip() == "None"


def test_an_open_quote_in_set_is_a_mistake_of_the_users(checkout):
    result = make("ablate", "EXP=no_qknorm", "SET=a='b", folder=checkout)
    assert result.returncode == 2
    assert "SET has a quote without its pair" in result.stderr
