"""The driver: stages of a cell as processes of the other wings, resumable."""
