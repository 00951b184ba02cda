"""Import this before all else that imports Lightning: it takes half the time then."""

from smlightning.training import imports

imports.lightning()
