"""Records that leave a machine: `collect` for the repository, `pack` and `unpack` as one archive for anybody."""
