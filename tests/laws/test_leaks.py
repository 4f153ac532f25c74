"""Law: no text of the repository names one machine's paths, or a host that is not public."""

import re

import pytest

from tests.laws.tree import ROOT, repository_files

# Home folders and scratch folders. `(?<![\w.])` lets a URL's path and a relative path pass.
MACHINE_PATH = re.compile(
    r"(?<![\w.])/(?:work|farm|root|home|Users|mnt|scratch|workspace)/|/tmp/(?:bash)|file:/{2,3}"
)

URL_HOST = re.compile(r"\b(?:https?|ftp|git|ssh)(?:\+\w+)?://(?:[^\s/@]*@)?([\w.-]+)")
PRIVATE_HOST = re.compile(r"\b[\w-]+(?:\.[\w-]+)*\.(?:internal|intranet|corp|lan|local)\b(?!\()")
ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")

# Hosts that any reader can open, and addresses that mean this machine. A mirror is never one of
# them: where packages come from is the reader's configuration.
PUBLIC_HOSTS = {
    "arxiv.org",
    "docs.python.org",
    "download.pytorch.org",  # where the README gets a CPU-only torch
    "github.com",
    "huggingface.co",
    "keepachangelog.com",
    "peps.python.org",
    "pypi.org",
    "www.w3.org",  # the namespace of SVG, a name and not a place to fetch from
    "pytorch.org",
    "semver.org",
    "www.apache.org",
}
THIS_MACHINE = {"localhost", "127.0.0.1", "0.0.0.0"}

# Lists of installed packages: a version of four numbers reads like an address there.
VERSION_LISTS = {"src/aerie/assets/pair/corpus.json", "src/aerie/assets/heldout/licences.json"}

LARGEST = 2_000_000  # bytes; anything longer is data


def leaks(path: str, text: str) -> list[str]:
    out = []
    for number, line in enumerate(text.splitlines(), 1):
        found = [match.group() for match in MACHINE_PATH.finditer(line)]
        found += [
            host for host in URL_HOST.findall(line) if host not in PUBLIC_HOSTS | THIS_MACHINE
        ]
        found += [match.group() for match in PRIVATE_HOST.finditer(line)]
        if path not in VERSION_LISTS:
            addresses = (match.group() for match in ADDRESS.finditer(line))
            found += [address for address in addresses if is_foreign(address)]
        out += [f"{path}:{number}: names {name}, a path or host of one machine" for name in found]
    return out


def is_foreign(address: str) -> bool:
    parts = [int(part) for part in address.split(".")]
    return max(parts) < 256 and address not in THIS_MACHINE


def text_of(name: str) -> str:
    path = ROOT / name
    if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST:
        return ""
    data = path.read_bytes()
    return "" if b"\0" in data else data.decode("utf-8", errors="replace")


def test_repository_obeys() -> None:
    names = repository_files()
    if names is None:
        pytest.skip("not a git checkout, so which files belong to the repository is unknown")
    violations = [found for name in names for found in leaks(name, text_of(name))]
    assert not violations, "\n".join(violations)


# Built from pieces, so that the law does not break itself.
SLASH, SCHEME = "/", "https:" + "//"


@pytest.mark.parametrize(
    "line",
    [
        f"cd {SLASH}work{SLASH}project",
        f'open("{SLASH}root{SLASH}.config")',
        f"see {SLASH}home{SLASH}someone{SLASH}notes",
        f"{SLASH}tmp{SLASH}bash_jobs",
        f"--find-links file:{SLASH * 3}wheels",
        f"--index-url {SCHEME}mirror.example.net/simple",
        f"git clone {SCHEME}user:word@code.example.net/repo",
        "ping build-7.cluster" + ".internal",
        "connect to 10.11" + ".12.13",
    ],
)
def test_law_bites(line: str) -> None:
    assert leaks("docs/page.md", "fine\n" + line)[0].startswith("docs/page.md:2: names ")


@pytest.mark.parametrize(
    "line",
    [
        "see docs/work/notes.md and ../home/page",
        f"{SCHEME}github.com/org/repo/root/file",
        "listen on 127.0.0.1:8000",
        "torch 2.13.0 and numpy 2.4.6",
        "threading.local() and tmp_path / 'bash'",
    ],
)
def test_ordinary_text_is_legal(line: str) -> None:
    assert leaks("docs/page.md", line) == []


def test_version_of_four_parts_is_legal_in_a_package_list_only() -> None:
    version = "13.1" + ".0.3"
    listed = "src/aerie/assets/pair/corpus.json"
    assert leaks(listed, version) == []
    assert leaks("docs/page.md", version)
    assert leaks(listed, f"{SLASH}home{SLASH}someone{SLASH}notes")
