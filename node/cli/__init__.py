"""The `panal` command: one module a command. Each imports what it needs when it runs, so that
`panal --help` is quick and commands that need no network never load it."""
