"""The guided agent: a search corrected by measurements and a pre-trained policy."""
