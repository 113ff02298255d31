"""What people and programs read of a run: `contract` (JSON), `console` (terminal), `html` (a page)."""
