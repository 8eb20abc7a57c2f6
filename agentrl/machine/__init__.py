"""The machine under a process: whole files, killable processes, threads and memory that compute."""
