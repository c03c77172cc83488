"""Tables for readers. Nothing here enters a verdict."""
