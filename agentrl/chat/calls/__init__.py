"""The syntaxes of calls: each reads and writes what one family of models writes."""
