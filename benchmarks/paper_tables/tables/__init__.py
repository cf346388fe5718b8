"""What the page shows: our tables, the papers', and the claims that our numbers decide."""
