"""Other words for paths, hosts, users and names: the same word for the same thing, numbered in order of appearance."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final

# Keys with values that are replaced as a whole, and the kind of their values.
_WHOLE: Final = {
    "boot_id": "boot",
    "run_id": "run",
    **dict.fromkeys(("host", "host_name", "hostname", "node_name", "nodename"), "host"),
    **dict.fromkeys(("user", "username", "user_name"), "user"),
    **dict.fromkeys(("argv", "cmdline", "command", "cwd", "environ"), "text"),
}
# A key, in JSON, whose whole value has one kind and is not a text, up to the value.
WHOLE_VALUE: Final = re.compile(rb'"((?i:%b))"\s*:\s*(?=[\[{\d-])' % "|".join(_WHOLE).encode())
# The last three hold functions, where a trace has stacks.
_NAMES: Final = frozenset({"name", "labels", "sf", "esf", "stack"})
# Words of these kinds are searched in all other texts too.
_EVERYWHERE: Final = ("host", "user")
_LEAST_LETTERS: Final = 2  # a word of one letter is in too many others

_HOME: Final = re.compile(r"(?:/home/|/Users/|\\Users\\)([^/\\\s:]+)")
_DRIVE: Final = r"(?<![A-Za-z])[A-Za-z]:"
_IN_PATH: Final = r"[\w.@+,=%~#-]"
_FILES: Final = "py|pyx|ipynb|sh|ya?ml|json|toml|cfg|ini|pth?|ckpt|safetensors|csv|parquet|log|so|cpp|cu|gz"
# Each part begins at a word and has a bounded length, so that the time is linear in any text.
_FOUND: Final = re.compile(
    "|".join(
        (
            r"(?P<url>(?<![\w+.-])[A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s\"'<>]+)",
            r"(?P<mail>(?<![\w.+-])[\w.+-]+@[\w-][\w.-]*)",
            # A file of Python with a line behind it, as in stacks; such a path may hold spaces.
            rf"(?P<stack>(?:{_DRIVE})?[/\\][^\n\"<>|*?]{{0,400}}?\.pyx?(?=\(\d+\)))",
            rf"(?P<windows>(?:{_DRIVE}|\\\\[\w.$-]+)[\\/][^\s:*?\"<>|]+)",
            rf"(?P<absolute>(?<![\w.)\]])~?/{_IN_PATH}+(?:/{_IN_PATH}*)+|^~?/{_IN_PATH}+$)",
            rf"(?P<relative>(?<![\w.@+,=%~#/-])(?:{_IN_PATH}+/)+[\w.-]*\.[A-Za-z]\w{{0,7}}(?![\w/]))",
            rf"(?P<file>(?<![\w/.-])[\w-]+(?:\.[\w-]+)*\.(?:{_FILES})(?![\w.]))",
            r"(?P<ipv4>(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]))",
            r"(?P<ipv6>(?<![\w:])(?=[0-9a-fA-F:]*\d)(?:[0-9a-fA-F]{0,4}:){3,7}[0-9a-fA-F]{1,4}(?![\w:]))",
        )
    )
)
# Every match of the patterns above holds one of these, with any JSON escapes.
_SIGNS: Final = rf"[/\\@]|\.(?:{_FILES})|\d\.\d+\.\d|:[0-9a-fA-F]{{0,4}}:"
# A text that is one path and nothing else, with spaces in it: none of the signs that a sentence has, and no second path.
_SPACED_PATH: Final = re.compile(r"(?:[A-Za-z]:[\\/]|\\\\|~?/)(?=\S)[^\n\t:;,\"<>|*?]{1,4000}")
_SECOND_PATH: Final = re.compile(r"\s(?:~?[/\\]|\S*://)|\.pyx?\(\d")
_KIND: Final = {"url": "url", "mail": "user", "ipv4": "address", "ipv6": "address"}  # all others are paths
_ENDING: Final = re.compile(r"\.[A-Za-z]\w{0,7}")

# After such a word stand numbers and more such words; anything else is yours.
_EVERYDAY: Final = (
    r"(?:rank|thread|stream|GPU|CPU|worker|process|python|lane|task|overlap|attempt|profiler|MainThread|ThreadPoolExecutor|Thread"
    r"|device|Device|compute|nccl|memcpy|memset|sync|h2d|d2h|d2d|tp|dp|pp|ep|cp|dcp|etp|edp"
    r"|pt_main_thread|pt_autograd_|pt_data_worker|pt_gloo_runloop|pt_nccl_watchdg)\d*"
)

# Names that everybody's traces have: of the trace format, of tracekit, and of torch's, CUDA's and Python's own doing.
_PUBLIC: Final = re.compile(
    "|".join(
        (
            r"process_(?:name|labels|sort_index|uptime_seconds)|thread_(?:name|sort_index)|tracekit[_.].*",
            r"training loop|batch|epoch",
            rf"{_EVERYDAY}(?:[ ·#(),:/._-]{{1,4}}(?:{_EVERYDAY}|\d+))*[ ·#():/.-]{{0,4}}",
            r"PyTorch Profiler.*|Record Window.*|Iteration Start: .*|Trace PyTorch .*|Traces|Spans|ProfilerStep#\d+|\[memory\]",
            r"(?:aten|c10d|c10|prim|nccl|gloo|mkldnn|quantized)(?:::?|\.)\w[\w.]*(?: \d+(?:->|<-)\d+)?",
            r"torch::(?:autograd|distributed)::[\w:]+|torch\.distributed\.[\w.:]+",
            r"autograd::engine::evaluate_function: (?:torch::autograd::AccumulateGrad|\w+Backward\d+)",
            r"(?:cuda|cu|hip|hsa|nccl)[A-Z]\w*|nccl\w*\(.*\)|Mem(?:cpy|set) .*|record_param_comms|NVIDIA .*|AMD .*",
            r"Optimizer\.\w+#\w+(?:\.step|\.zero_grad)|enumerate\(DataLoader\)#\w+.*|<built-in .*>|ac2g|fwdbwd|async_gpu",
            r"(?:Context|Stream|Event|Device) (?:Sync|Synchronize)\b.*|\w*(?:Backward\d+|AccumulateGrad)",
        )
    ),
    re.DOTALL,
)


class Aliases:
    """Gives everything that could name somebody another word.

    Paths, URLs, addresses and mail are found by their form. Hosts and users are also found by their words, which `learn`
    collects: values of keys such as ``host_name``, and owners of home folders.

    Args:
        names: Also give other names to events, processes and threads, but for those that everybody has.
    """

    def __init__(self, *, names: bool = False) -> None:
        self._names = names
        self._words: dict[str, dict[str, str]] = {}
        self._known: re.Pattern[str] | None = None
        self._in_file_names: re.Pattern[str] | None = None
        self._signs = re.compile(b"")

    @property
    def counts(self) -> dict[str, int]:
        """The number of replaced things by kind."""
        return {kind: len(words) for kind, words in sorted(self._words.items()) if words}

    def learn(self, key: str, text: str) -> None:
        """Record the hosts and users that a text names."""
        kind = _WHOLE.get(key.lower())
        if kind in _EVERYWHERE and kind is not None and text:
            self._alias(kind, text)
            short = text.partition(".")[0]
            if kind == "host" and short and short != text and not short.isdigit():
                self._alias(kind, short)
        for user in _HOME.findall(text):
            self._alias("user", user)

    def finish_learning(self) -> None:
        """Search for all learned words from now on."""
        words = {word for kind in _EVERYWHERE for word in self._words.get(kind, ()) if len(word) >= _LEAST_LETTERS}
        # The longest first, since one may begin with another.
        ordered = sorted(words, key=lambda word: (-len(word), word))
        known = "|".join(map(re.escape, ordered))
        self._known, self._in_file_names = (
            re.compile(rf"(?<!{letter})(?:{known})(?!{letter})") if ordered else None
            for letter in (r"\w", r"[^\W_]")  # torch writes HOST_PID into the names of files
        )
        keys = "|".join([*_WHOLE, *(sorted(_NAMES) if self._names else ())])
        signs = [_SIGNS, rf'"(?i:{keys})"', *map(re.escape, ordered)]
        self._signs = re.compile("|".join(signs).encode("utf-8", "replace"))

    def may_change(self, json: bytes) -> bool:
        """Return True if `clean` could change any text of some JSON: False is certain, True is not."""
        return self._signs.search(json) is not None

    def clean(self, key: str, text: str) -> str:
        """Return a text without what names somebody."""
        kind = _WHOLE.get(key.lower())
        if kind is not None and text:
            return self._alias(kind, text)
        if self._names and key in _NAMES and not _PUBLIC.fullmatch(text):
            return self._alias("name", text) if text else text
        if " " in text and _SPACED_PATH.fullmatch(text) and not _SECOND_PATH.search(text):
            # After the first space a folder or the ending of a file must follow, or it is a path with words behind it.
            rest = text.partition(" ")[2]
            if "/" in rest or "\\" in rest or _ENDING.fullmatch(PurePosixPath(rest).suffix):
                return self._other_path(text)
        cleaned = _FOUND.sub(self._other_word, text)
        return cleaned if self._known is None else self._known.sub(self._known_word, cleaned)

    def clean_file_name(self, name: str) -> str:
        """Return the name of a file without learned hosts and users."""
        return name if self._in_file_names is None else self._in_file_names.sub(self._known_word, name)

    def _known_word(self, match: re.Match[str]) -> str:
        return next(self._words[kind][match[0]] for kind in _EVERYWHERE if match[0] in self._words.get(kind, ()))

    def _other_word(self, match: re.Match[str]) -> str:
        kind = _KIND.get(match.lastgroup or "")
        return self._alias(kind, match[0]) if kind else self._other_path(match[0])

    def _other_path(self, path: str) -> str:
        # The suffix is not a secret, and viewers and readers need it.
        ending = PurePosixPath(path.replace("\\", "/")).suffix
        return self._alias("path", path) + (ending if _ENDING.fullmatch(ending) else "")

    def _alias(self, kind: str, text: str) -> str:
        words = self._words.setdefault(kind, {})
        return words.setdefault(text, f"{kind}-{len(words) + 1}")
