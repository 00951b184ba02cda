"""Python runs this file when it starts: before any import of the script."""

import rehearsal_hidden

rehearsal_hidden.hide()
