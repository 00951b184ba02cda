"""Import this before anything that imports Lightning: the import then takes half the time."""

from smlightning.training import imports

imports.lightning()
