"""Real faults of a file system: a library, put before the C library, that fails calls on chosen files.

Nothing inside the program is replaced: the interpreter and Arrow both get the error from the system call they make.
A process starts with the library (``with_faults``) and then says what is to fail (``fail``), by its environment, which
children inherit.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, to fail system calls")

_SHIM = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int seen;
static atomic_char hit[65536];

void faults_from_here(void) { seen = 0; }

/* Whether this call, of kind `of`, is one of those that are to fail. */
static int fails(const char *of) {
    const char *kind = getenv("FAULT_CALL");
    if (!kind || strcmp(kind, of)) return 0;
    int number = atomic_fetch_add(&seen, 1), first = atoi(getenv("FAULT_FIRST")), count = atoi(getenv("FAULT_COUNT"));
    if (number < first || number >= first + count) return 0;
    errno = atoi(getenv("FAULT_ERRNO"));
    return 1;
}

static int chosen(const char *path) {
    const char *end = getenv("FAULT_FILE");
    size_t n = strlen(path), m = end ? strlen(end) : 0;
    return m && n >= m && !strcmp(path + n - m, end);
}

#define OPEN(name)                                                                              \
    int name(const char *path, int flags, ...) {                                                \
        static int (*real)(const char *, int, ...);                                             \
        if (!real) real = dlsym(RTLD_NEXT, #name);                                              \
        va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more);        \
        if (!chosen(path)) return real(path, flags, mode);                                      \
        if (fails("open")) return -1;                                                           \
        int fd = real(path, flags, mode);                                                       \
        if (fd >= 0 && fd < 65536) hit[fd] = 1;                                                 \
        return fd;                                                                              \
    }
OPEN(open)
OPEN(open64)

DIR *opendir(const char *path) {
    static DIR *(*real)(const char *);
    if (!real) real = dlsym(RTLD_NEXT, "opendir");
    return chosen(path) && fails("list") ? NULL : real(path);
}

int close(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "close");
    if (fd >= 0 && fd < 65536) hit[fd] = 0;
    return real(fd);
}

#define READ(name, parameters, arguments)                                                       \
    ssize_t name parameters {                                                                   \
        static ssize_t (*real) parameters;                                                      \
        if (!real) real = dlsym(RTLD_NEXT, #name);                                              \
        if (fd >= 0 && fd < 65536 && hit[fd] && fails("read")) return -1;                       \
        return real arguments;                                                                  \
    }
READ(read, (int fd, void *to, size_t n), (fd, to, n))
READ(pread, (int fd, void *to, size_t n, off_t at), (fd, to, n, at))
READ(pread64, (int fd, void *to, size_t n, off64_t at), (fd, to, n, at))
"""


@functools.cache
def _library() -> Path:
    """The compiled library; once a process."""
    folder = Path(tempfile.mkdtemp(prefix="zephon-faults-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "faults.c").write_text(_SHIM)
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", "faults.so", "faults.c", "-ldl"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    return folder / "faults.so"


def with_faults(file: str) -> dict[str, str]:
    """The environment of a process in which calls on files whose path ends in ``file`` can fail."""
    return {**os.environ, "LD_PRELOAD": str(_library()), "FAULT_FILE": file}


def fail(call: str, number: int = errno.EIO, first: int = 0, count: int = 1) -> None:
    """From here on calls ``first`` to ``first + count`` of this process fail with ``number``.

    ``call``: "open", "read", "list" or "none".
    """
    for name, value in {"CALL": call, "ERRNO": number, "FIRST": first, "COUNT": count}.items():
        os.environ[f"FAULT_{name}"] = str(value)
    ctypes.CDLL(None).faults_from_here()
