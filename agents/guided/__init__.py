"""The guided agent: a search corrected by measurements, and a policy if asked for."""
