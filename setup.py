"""Packages what pyproject.toml cannot say: `csrc/` is shipped inside the package, as `coda_lang/csrc`."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["coda_lang", "coda_lang.*"]), "coda_lang.csrc"],
    package_dir={"coda_lang.csrc": "csrc"},
    package_data={
        "coda_lang": ["py.typed"],
        "coda_lang.parser": ["*.lark"],
        "coda_lang.ir": ["*.coda"],
        "coda_lang.csrc": ["**/*.h", "**/*.hpp", "**/*.cuh"],
    },
)
