"""What thirty steps on a real model show: claims that were written before the runs."""
