"""Words and names: large lists with a fixed held-out part, and the identifiers, file names and texts made of them."""

import random
import zlib
from collections.abc import Callable
from keyword import iskeyword

NOUNS = ["account", "action", "actor", "address", "agent", "alarm", "album", "alert", "amount", "anchor", "angle", "animal", "answer", "apple", "archive", "area", "arrow", "article", "artist", "asset", "atlas", "author", "badge", "balance", "banana", "band", "bank", "banner", "barrel", "basket", "batch", "battery", "beacon", "beam", "bed", "bicycle", "bill", "bin", "bird", "block", "blog", "board", "boat", "body", "bolt", "bond", "book", "border", "bottle", "bowl", "box", "branch", "brand", "bread", "brick", "bridge", "brush", "bucket", "budget", "buffer", "bug", "builder", "bundle", "bus", "button", "cabin", "cable", "cache", "cake", "calendar", "camera", "camp", "canal", "candle", "canvas", "card", "cargo", "carpet", "carrier", "cart", "case", "castle", "cat", "catalog", "category", "cell", "center", "chain", "chair", "chamber", "channel", "chapter", "charge", "chart", "check", "cheese", "chest", "chunk", "circle", "city", "claim", "class", "clause", "client", "clinic", "clip", "clock", "cloud", "club", "coach", "coast", "code", "coffee", "coin", "collar", "color", "column", "comment", "company", "component", "contact", "container", "content", "contract", "cookie", "copper", "corner", "cost", "counter", "country", "coupon", "course", "cover", "crate", "credit", "crew", "crop", "cup", "currency", "cursor", "curve", "customer", "cycle", "dam", "dancer", "dashboard", "date", "day", "deal", "debt", "deck", "deer", "delay", "deposit", "depot", "depth", "desert", "design", "desk", "device", "dial", "diary", "dinner", "discount", "disk", "dish", "district", "dock", "doctor", "document", "dog", "dollar", "domain", "door", "draft", "dragon", "drawer", "dream", "driver", "drum", "duck", "dust", "duty", "eagle", "edge", "editor", "egg", "element", "engine", "entry", "envelope", "error", "event", "exam", "exit", "expense", "export", "fabric", "factor", "factory", "fan", "farm", "fee", "feed", "fence", "ferry", "field", "figure", "file", "film", "filter", "finger", "fire", "fish", "flag", "flame", "flight", "floor", "flower", "folder", "font", "forest", "fork", "form", "format", "fox", "fraction", "frame", "freight", "friend", "frog", "fruit", "fuel", "fund", "game", "garage", "garden", "gas", "gate", "gauge", "gear", "gift", "glass", "globe", "glove", "goal", "goat", "gold", "grade", "grain", "grant", "grape", "graph", "grid", "group", "guard", "guest", "guide", "guitar", "hall", "hammer", "handle", "harbor", "hat", "header", "heap", "height", "helmet", "hero", "hill", "hint", "history", "hook", "horse", "hospital", "hotel", "hour", "house", "hub", "icon", "image", "import", "index", "inlet", "input", "insect", "invoice", "island", "item", "jacket", "jar", "jewel", "job", "journal", "journey", "judge", "juice", "jungle", "kernel", "kettle", "key", "kitchen", "kite", "knife", "label", "ladder", "lake", "lamp", "lane", "language", "laptop", "layer", "leaf", "league", "ledger", "lemon", "length", "lesson", "letter", "level", "library", "license", "light", "limit", "line", "link", "lion", "list", "loan", "lock", "log", "loop", "lot", "lunch", "machine", "magnet", "mail", "manager", "map", "margin", "mark", "market", "mask", "match", "matrix", "meal", "measure", "medal", "member", "memo", "memory", "menu", "merchant", "message", "metal", "meter", "method", "metric", "mile", "milk", "mill", "mine", "minute", "mirror", "mission", "mode", "model", "module", "moment", "money", "monkey", "month", "moon", "motor", "mountain", "mouse", "movie", "museum", "music", "name", "nation", "needle", "nest", "net", "network", "night", "node", "noise", "note", "notice", "number", "oak", "object", "ocean", "offer", "office", "oil", "olive", "onion", "option", "orange", "orbit", "order", "organ", "origin", "outlet", "oven", "owner", "packet", "page", "paint", "pair", "palace", "panel", "paper", "parcel", "parent", "park", "part", "partner", "party", "pass", "passenger", "patch", "path", "patient", "pattern", "payment", "peak", "pen", "pencil", "penalty", "pepper", "period", "permit", "person", "phase", "phone", "photo", "piano", "picture", "pilot", "pin", "pipe", "pixel", "planet", "plant", "plate", "player", "plot", "plug", "pocket", "poem", "point", "policy", "pond", "pool", "port", "portal", "post", "potato", "price", "printer", "prize", "process", "product", "profile", "profit", "project", "proof", "pump", "purchase", "puzzle", "quarter", "query", "queue", "quiz", "quota", "quote", "rabbit", "race", "rack", "radar", "radio", "rail", "rain", "range", "rate", "ratio", "reader", "reason", "rebate", "receipt", "recipe", "record", "region", "reply", "report", "request", "reserve", "result", "retry", "revenue", "review", "reward", "ribbon", "rice", "ride", "ring", "risk", "river", "road", "robot", "rocket", "roof", "room", "root", "rope", "rose", "route", "row", "rule", "runner", "salad", "salary", "sale", "salt", "sample", "sand", "scale", "scene", "schedule", "school", "scope", "score", "screen", "script", "sea", "season", "seat", "second", "secret", "section", "sector", "seed", "sensor", "server", "session", "shape", "share", "sheet", "shelf", "shell", "shield", "shift", "ship", "shirt", "shoe", "shop", "signal", "silver", "singer", "site", "size", "skill", "sky", "slice", "slot", "snake", "snow", "soap", "socket", "soil", "song", "sound", "soup", "source", "space", "spark", "speaker", "speed", "spider", "spoon", "sport", "spring", "square", "stack", "staff", "stage", "stamp", "star", "state", "station", "statue", "status", "steam", "steel", "step", "stock", "stone", "storage", "store", "storm", "story", "stove", "stream", "street", "string", "student", "studio", "style", "subject", "sugar", "suit", "sum", "summary", "sun", "supplier", "surface", "survey", "switch", "symbol", "system", "table", "tag", "tail", "tank", "target", "task", "tax", "taxi", "tea", "teacher", "team", "temple", "tenant", "tent", "term", "test", "text", "theme", "thread", "ticket", "tide", "tiger", "tile", "time", "tip", "title", "token", "tool", "tooth", "topic", "torch", "total", "tour", "tower", "town", "toy", "track", "tractor", "trade", "train", "transfer", "tray", "tree", "trend", "trial", "truck", "trunk", "tube", "tunnel", "turbine", "turtle", "unit", "user", "valley", "value", "valve", "vault", "vector", "vehicle", "vendor", "venue", "vessel", "video", "view", "village", "violin", "visit", "visitor", "voice", "volume", "vote", "voucher", "wage", "wagon", "wall", "wallet", "warehouse", "watch", "water", "wave", "wheel", "whistle", "widget", "width", "wind", "window", "wine", "wing", "winner", "wire", "wolf", "wood", "word", "worker", "yard", "year", "zebra", "zone"]

VERBS = ["accept", "add", "adjust", "align", "allocate", "append", "apply", "archive", "assign", "attach", "balance", "bind", "blend", "block", "book", "boost", "build", "calculate", "call", "cancel", "capture", "check", "choose", "clean", "clear", "close", "collect", "combine", "compare", "compose", "compress", "compute", "confirm", "connect", "convert", "copy", "correct", "count", "cover", "create", "cut", "decode", "decrease", "delete", "deliver", "deny", "detect", "dispatch", "display", "divide", "draw", "drop", "emit", "enable", "encode", "enter", "estimate", "evaluate", "exclude", "expand", "export", "extend", "extract", "fetch", "fill", "filter", "find", "finish", "fix", "flatten", "fold", "follow", "format", "forward", "gather", "generate", "get", "grow", "guard", "handle", "hide", "hold", "import", "improve", "include", "increase", "init", "insert", "inspect", "invert", "invite", "join", "keep", "label", "launch", "lead", "limit", "link", "list", "load", "locate", "lock", "log", "lookup", "make", "map", "mark", "match", "measure", "merge", "mix", "move", "multiply", "name", "normalize", "notify", "number", "offer", "open", "order", "pack", "paint", "parse", "pause", "pick", "place", "plan", "play", "prepare", "press", "print", "process", "produce", "project", "protect", "publish", "pull", "push", "put", "query", "queue", "raise", "rank", "rate", "reach", "read", "rebuild", "receive", "record", "reduce", "refresh", "refund", "register", "release", "reload", "remove", "rename", "render", "repair", "repeat", "replace", "reply", "report", "request", "reset", "resize", "resolve", "restore", "retry", "return", "reverse", "review", "rotate", "round", "route", "run", "sample", "save", "scale", "scan", "schedule", "score", "search", "select", "send", "serve", "set", "shift", "ship", "show", "shuffle", "shrink", "sign", "skip", "slice", "solve", "sort", "split", "stack", "start", "stop", "store", "strip", "submit", "subtract", "sum", "swap", "switch", "sync", "take", "test", "throw", "tick", "toggle", "track", "transfer", "transform", "translate", "trim", "turn", "unlock", "unpack", "update", "upload", "use", "validate", "verify", "view", "visit", "wait", "walk", "warn", "wash", "watch", "weigh", "wrap", "write", "zip"]

ADJECTIVES = ["active", "actual", "annual", "average", "backup", "basic", "big", "black", "blue", "bright", "broken", "brown", "busy", "calm", "central", "cheap", "clean", "clear", "cold", "common", "complete", "cool", "current", "daily", "dark", "deep", "default", "direct", "double", "dry", "dynamic", "early", "east", "easy", "empty", "equal", "exact", "express", "external", "extra", "fair", "fast", "final", "first", "fixed", "flat", "free", "fresh", "full", "general", "global", "golden", "good", "grand", "green", "gray", "half", "happy", "hard", "heavy", "hidden", "high", "hot", "huge", "idle", "inner", "internal", "large", "last", "late", "lazy", "left", "light", "little", "live", "local", "lonely", "long", "loose", "loud", "low", "lower", "lucky", "main", "major", "maximum", "medium", "minimum", "minor", "mixed", "modern", "monthly", "narrow", "native", "near", "new", "next", "nice", "noisy", "normal", "north", "odd", "old", "open", "optional", "outer", "paid", "pale", "parallel", "partial", "past", "pending", "perfect", "plain", "polite", "poor", "pretty", "previous", "primary", "private", "proud", "public", "pure", "quick", "quiet", "random", "rapid", "raw", "ready", "real", "recent", "red", "regular", "remote", "rich", "right", "rough", "round", "safe", "secondary", "secure", "shared", "sharp", "short", "silent", "simple", "single", "slow", "small", "smart", "smooth", "soft", "solid", "south", "special", "spare", "stable", "static", "steep", "sticky", "strict", "strong", "sweet", "tall", "temporary", "thick", "thin", "tiny", "top", "total", "tough", "upper", "urgent", "usual", "valid", "virtual", "warm", "weak", "weekly", "west", "wet", "white", "whole", "wide", "wild", "wise", "yearly", "yellow", "young"]

CONST_PREFIX = ["MAX", "MIN", "DEFAULT", "BASE", "TOTAL", "INITIAL", "FINAL", "EXTRA", "LOCAL", "GLOBAL", "MAIN"]
CONST_SUFFIX = ["SIZE", "LIMIT", "COUNT", "RATE", "TIMEOUT", "DELAY", "RETRIES", "WIDTH", "HEIGHT", "LEVEL", "NAME", "MODE", "PATH", "HOST", "PORT", "FACTOR", "DAYS", "HOURS", "COLOR", "PREFIX", "SUFFIX", "VERSION", "THRESHOLD", "INTERVAL", "STEP", "URL", "KEY", "TITLE", "FORMAT", "DEPTH", "WEIGHT", "SCORE", "PRICE", "TAX", "FEE", "AGE"]
PLURAL_EXCEPTIONS = {
    "mouse": "mice",
    "leaf": "leaves",
    "knife": "knives",
    "person": "people",
    "shelf": "shelves",
    "wolf": "wolves",
}
CONSONANTS = ["b", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "br", "cr", "dr", "fl", "gr", "kl", "pl", "pr", "st", "tr"]
VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "io", "ou"]
HELD_OUT_SHARE = 12


def is_held_out(word: str) -> bool:
    """Whether a word belongs to the part that training never sees (a fixed eighth or so, by checksum)."""
    return zlib.crc32(word.encode()) % 100 < HELD_OUT_SHARE


def plural(noun: str) -> str:
    """The plural of an English noun of the list."""
    if noun in PLURAL_EXCEPTIONS:
        return PLURAL_EXCEPTIONS[noun]
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def camel(words: list[str]) -> str:
    """lowerCamelCase of words."""
    return words[0] + "".join(word.capitalize() for word in words[1:])


def pascal(words: list[str]) -> str:
    """UpperCamelCase of words."""
    return "".join(word.capitalize() for word in words)


class Words:
    """Draws words and names, from the training part or from the held-out part, never twice the same name."""

    def __init__(self, rng: random.Random, held_out: bool = False) -> None:
        self.rng = rng
        self.held_out = held_out
        pools = POOLS[held_out]
        self._nouns, self._verbs, self._adjectives = pools
        self.used: set[str] = set()

    def noun(self) -> str:
        """A noun; now and then an invented word."""
        return self.invented() if self.rng.random() < 0.05 else self.rng.choice(self._nouns)

    def verb(self) -> str:
        """A verb."""
        return self.rng.choice(self._verbs)

    def adjective(self) -> str:
        """An adjective."""
        return self.rng.choice(self._adjectives)

    def invented(self) -> str:
        """A word that no list has."""
        rng = self.rng
        length = rng.choice((2, 2, 2, 3))
        text = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(length))
        return text + rng.choice(("", "n", "r", "x", "l", "t"))

    def fresh(self, make: Callable[[], str], tries: int = 40) -> str:
        """The first name from `make()` that was not used yet."""
        for _ in range(tries):
            name = make()
            if name not in self.used:
                break
        else:
            name = f"{make()}{self.rng.randrange(2, 99)}"
        self.used.add(name)
        return name

    def function_words(self) -> list[str]:
        """Words of a function's name: verb first."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.45:
            return [self.verb(), self.noun()]
        if kind < 0.65:
            return [self.verb(), self.adjective(), self.noun()]
        if kind < 0.75:
            return [self.verb(), self.noun(), self.noun()]
        if kind < 0.83:
            return [self.noun(), self.noun()]
        if kind < 0.88:
            return ["is", self.adjective()]
        if kind < 0.92:
            return [self.verb(), plural(self.noun())]
        return [self.verb()] if rng.random() < 0.4 else [self.noun(), "to", self.noun()]

    def function(self, style: str = "snake") -> str:
        """A fresh function name."""
        join = camel if style == "camel" else "_".join
        return self.fresh(lambda: join(self.function_words()))

    def variable(self, style: str = "snake") -> str:
        """A variable name; not reserved."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.55:
            words = [self.noun()]
        elif kind < 0.8:
            words = [self.adjective(), self.noun()]
        else:
            words = [self.noun(), self.noun()]
        name = camel(words) if style == "camel" else "_".join(words)
        return name if name not in RESERVED else name + "_value"

    def class_name(self) -> str:
        """A fresh class name."""

        def make() -> str:
            kind = self.rng.random()
            if kind < 0.35:
                return pascal([self.noun()])
            if kind < 0.8:
                return pascal([self.noun(), self.noun()])
            return pascal([self.adjective(), self.noun()])

        return self.fresh(make)

    def constant(self) -> str:
        """A fresh UPPER_CASE name."""
        rng = self.rng

        def make() -> str:
            kind = rng.random()
            if kind < 0.3:
                words = [rng.choice(CONST_PREFIX), self.noun()]
            elif kind < 0.6:
                words = [self.noun(), rng.choice(CONST_SUFFIX)]
            elif kind < 0.75:
                words = [rng.choice(CONST_PREFIX), self.noun(), rng.choice(CONST_SUFFIX)]
            elif kind < 0.85:
                words = [self.noun()]
            elif kind < 0.95:
                words = [self.adjective(), self.noun()]
            else:
                words = [rng.choice(CONST_PREFIX), rng.choice(CONST_SUFFIX)]
            return "_".join(words).upper()

        return self.fresh(make)

    def module(self) -> str:
        """A fresh module name (no extension)."""

        def make() -> str:
            kind = self.rng.random()
            if kind < 0.6:
                return self.noun()
            if kind < 0.75:
                return plural(self.noun())
            return f"{self.noun()}_{self.noun()}"

        return self.fresh(
            lambda: name if (name := make()) not in STDLIB_CLASH | RESERVED else name + "_tools"
        )

    def title(self) -> str:
        """Two to four words, first upper-case, as in a heading."""
        words = [self.adjective(), self.noun()] if self.rng.random() < 0.6 else [self.noun(), self.noun()]
        if self.rng.random() < 0.2:
            words.append("notes")
        return " ".join(words).capitalize()

    def phrase(self) -> str:
        """A short sentence without full stop."""
        rng = self.rng
        noun, other = self.noun(), self.noun()
        return rng.choice(
            (
                f"{self.verb()} the {noun} before the {other}",
                f"the {self.adjective()} {noun} is {self.adjective()}",
                f"every {noun} has a {self.adjective()} {other}",
                f"{self.verb()} {plural(noun)} and {plural(other)}",
                f"{plural(noun)} are kept in the {self.adjective()} {other}",
                f"ask the {noun} about the {other}",
                f"a {noun} without a {other} is {self.adjective()}",
                f"do not {self.verb()} the {self.adjective()} {noun}",
                f"{noun} {self.verb()}s {other}",
            )
        )

    def text_value(self) -> str:
        """A short string as found in constants and settings."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.45:
            return self.noun()
        if kind < 0.6:
            return f"{self.adjective()}-{self.noun()}"
        if kind < 0.7:
            return f"{self.noun()}_{rng.randrange(1, 99)}"
        if kind < 0.78:
            return f"https://{self.noun()}.example.com/{self.noun()}"
        if kind < 0.86:
            return f"/{self.noun()}/{self.noun()}"
        if kind < 0.92:
            return f"{self.adjective()} {self.noun()}"
        return f"{self.noun()}.{rng.choice(('txt', 'csv', 'log', 'json', 'db'))}"


RESERVED = frozenset(
    ["and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield", "None", "True", "False", "list", "dict", "set", "str", "int", "float", "sum", "min", "max", "len", "map", "filter", "input", "range", "print", "open", "type", "id", "hash", "next", "iter", "all", "any", "bin", "hex", "oct", "object", "property", "format", "match", "case", "round", "super", "zip", "sorted", "reversed", "abs", "pow", "ord", "chr", "dir", "vars", "slice", "bytes", "self", "cls"]
)
STDLIB_CLASH = frozenset(
    ["token", "queue", "calendar", "code", "string", "test", "tests", "select", "signal", "email", "site", "statistics", "random", "time", "types", "copy", "operator", "numbers", "secrets", "array", "bisect", "glob", "json", "csv", "logging", "platform", "profile", "inspect", "struct", "symbol", "parser", "shelve", "cmd", "trace", "warnings", "this", "dis", "ast", "abc", "io", "re", "os", "sys", "math", "heap", "html", "http", "xml", "socket", "ssl", "turtle", "uuid", "wave", "zip", "resource", "crypt", "chunk", "formatter", "imp", "mailbox", "locale", "linecache", "getopt", "gettext", "graph", "port", "pickle", "process", "station", "user", "tokens", "letters", "post_office", "book", "file"]
)
"""Names that would hide a module of the standard library (or look too much like one) get a suffix."""

POOLS = {
    held_out: tuple(
        [word for word in words if is_held_out(word) == held_out and not iskeyword(word)]
        for words in (NOUNS, VERBS, ADJECTIVES)
    )
    for held_out in (False, True)
}
