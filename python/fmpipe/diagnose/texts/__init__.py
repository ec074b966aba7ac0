"""Every sentence of the checks and the report, in English and Chinese: one key, one table of templates per language."""

import string

from fmpipe.diagnose.texts import en, zh

LANGUAGES = {"en": en, "zh": zh}


class _Formatter(string.Formatter):
    """Formats lists and mappings element by element: ``{cos:.3g}`` of [0.05, 0.045] is "0.05, 0.045"."""

    def get_field(self, field_name, args, kwargs):  # names may contain slashes, dots and brackets
        return kwargs[field_name], field_name

    def format_field(self, value, format_spec):
        if isinstance(value, dict):
            return ", ".join(f"{key} {self.format_field(part, format_spec)}" for key, part in value.items())
        if isinstance(value, (list, tuple)):
            return ", ".join(self.format_field(part, format_spec) for part in value)
        if isinstance(value, str) or value is None:
            return str(value)
        return super().format_field(value, format_spec)


_FORMATTER = _Formatter()
SENTENCE, ADVICE, CAUSE = range(3)  # parts of an entry of TEXTS
TITLE, THRESHOLD, EXPERIENCE = range(3)  # parts of an entry of RULES


def template(lang: str, key: str, part: int = SENTENCE, table: str = "TEXTS") -> str:
    """Return a template; "" if the entry does not have this part. ValueError for an unknown language."""
    if lang not in LANGUAGES:
        raise ValueError(f"lang must be one of {', '.join(LANGUAGES)}, got {lang!r}")
    entry = getattr(LANGUAGES[lang], table)[key]
    entry = (entry,) if isinstance(entry, str) else entry
    return entry[part] if part < len(entry) else ""


class Message(str):
    """An English sentence with numbers; ``into("zh")`` returns the same in Chinese."""

    __slots__ = ("key", "part", "table", "values")

    def __new__(cls, key: str, part: int = SENTENCE, table: str = "TEXTS", /, **values: object) -> "Message":
        self = super().__new__(cls, _FORMATTER.vformat(template("en", key, part, table), (), values))
        self.key, self.part, self.table, self.values = key, part, table, values
        return self

    def __getnewargs_ex__(self):
        return (self.key, self.part, self.table), self.values

    def into(self, lang: str) -> str:
        values = {name: into(value, lang) for name, value in self.values.items()}
        return _FORMATTER.vformat(template(lang, self.key, self.part, self.table), (), values)


def into(text: object, lang: str) -> object:
    """Translate a :class:`Message`; return anything else as it is."""
    return text.into(lang) if isinstance(text, Message) else text


def word(lang: str, key: str, **values: object) -> str:
    """Return a text of the page or the terminal."""
    return Message(key, SENTENCE, "WORDS", **values).into(lang)
