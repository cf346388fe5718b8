"""Programs and hosts in tests: commands as users type them, launches, emulated clusters."""
