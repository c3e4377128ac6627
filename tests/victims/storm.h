// A thread that sends its process's first thread a signal every few microseconds, until the end.
#include "expect.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static void storm_handler(int number) {
    (void)number;
}

static void *storm_sends(void *thread) {
    while (pthread_kill(*(pthread_t *)thread, SIGUSR2) == 0) {
        usleep(20);
    }
    return NULL;
}

static void storm_begin(void) {
    static pthread_t first, sender;
    first = pthread_self();
    struct sigaction action = {.sa_handler = storm_handler, .sa_flags = SA_RESTART};
    EXPECT(sigaction(SIGUSR2, &action, NULL) == 0);
    EXPECT(pthread_create(&sender, NULL, storm_sends, &first) == 0);
    EXPECT(pthread_detach(sender) == 0);
}
