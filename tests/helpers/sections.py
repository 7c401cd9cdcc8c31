"""The sections and keys in plsc's own config, for tests that go through all."""

from plsc.config import Config
from plsc.utils.section import Section, sections_in


def all_sections(base: type[Section] = Section) -> set[type[Section]]:
    """Return the sections of plsc's own config."""
    below = {section for section in base.__subclasses__() if section.__module__.startswith("plsc.")}
    return below.union(*map(all_sections, below))


def config_keys(section: type[Section] = Config, path: str = "") -> set[str]:
    """Return a config's keys that have values, as "Section.key".

    If a section has several names, its key counts once. The keys of Optimizer.head are Optimizer's.
    """
    keys = set()
    for key, field in section.model_fields.items():
        below = sections_in(field.annotation)
        if path + key == "Optimizer.head" or not below:
            keys.add(path + key)
        else:
            keys.update(*(config_keys(kind, f"{path}{key}.") for kind in below))
    return keys
