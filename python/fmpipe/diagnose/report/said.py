"""A sentence with numbers in it, in English and Chinese: one key, one table of templates for each language."""

from fmpipe.diagnose.report import en, zh

LANGUAGES = {"en": en, "zh": zh}


def template(lang: str, key: str, table: str = "TEXTS") -> str | None:
    """That of the key, else of its first part (``check/leak``, ``check``). ValueError for another language."""
    if lang not in LANGUAGES:
        raise ValueError(f"lang must be one of {', '.join(LANGUAGES)}, got {lang!r}")
    texts = getattr(LANGUAGES[lang], table)
    return texts.get(key, texts.get(key.split("/")[0]))


class Said(str):
    """Itself it is the English sentence; ``into("zh")`` is the Chinese one, of the same numbers."""

    __slots__ = ("key", "table", "values")

    def __new__(cls, key: str, table: str = "TEXTS", **values: object) -> "Said":
        self = super().__new__(cls, template("en", key, table).format(**values))
        self.key, self.table, self.values = key, table, values
        return self

    def into(self, lang: str) -> str:
        values = {name: into(value, lang) for name, value in self.values.items()}
        return template(lang, self.key, self.table).format(**values)


def into(text: object, lang: str) -> object:
    """What can be said in another language is; anything else stays."""
    return text.into(lang) if isinstance(text, Said) else text
