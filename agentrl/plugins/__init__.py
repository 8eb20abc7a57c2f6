"""Parts by name: kinds of one thing, import strings, and the extra that brings what is missing."""
