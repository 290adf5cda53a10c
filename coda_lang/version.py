"""The package's version, alone in a file so that building needs no dependency."""

VERSION = "0.1.0"
