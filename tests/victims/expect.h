// What a victim expects, and how it ends where that is not so: with status 1 and a line that names case, place and errno.
//
// Include it first: it asks for all that the C library has.
#pragma once
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *case_name = "start";

// Without buffers and exit handlers, which a child would share with its parent.
static void fail(const char *what, int line) {
    dprintf(2, "%s: WRONG in case '%s', line %d: %s (errno %d: %s)\n", program_invocation_short_name, case_name, line, what, errno,
            strerror(errno));
    _exit(1);
}

#define EXPECT(condition) \
    do { \
        if (!(condition)) \
            fail(#condition, __LINE__); \
    } while (0)
