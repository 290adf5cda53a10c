"""Packages what pyproject.toml cannot say: `csrc/` and `programs/` are shipped inside the package."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["coda_lang", "coda_lang.*"]), "coda_lang.csrc", "coda_lang.programs"],
    package_dir={"coda_lang.csrc": "csrc", "coda_lang.programs": "programs"},
    package_data={
        "coda_lang": ["py.typed"],
        "coda_lang.parser": ["*.lark"],
        "coda_lang.ir": ["*.coda"],
        "coda_lang.programs": ["*.coda"],
        "coda_lang.csrc": ["**/*.h", "**/*.hpp", "**/*.cuh"],
    },
)
