/* Writes the wall clock in nanoseconds to the file named by its argument as the very first thing it does, then waits to be
 * ended: what a container's start is measured by. The file appears whole, by rename. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static void end(int signal) {
	(void)signal;
	_exit(0);
}

int main(int argc, char **argv) {
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (argc != 2)
		return 2;
	char text[32], temporary[4096];
	int length = snprintf(text, sizeof text, "%lld\n", (long long)now.tv_sec * 1000000000LL + now.tv_nsec);
	if (snprintf(temporary, sizeof temporary, "%s.new", argv[1]) >= (int)sizeof temporary)
		return 2;
	int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (file < 0 || write(file, text, length) != length || close(file) || rename(temporary, argv[1]))
		return 3;
	struct sigaction on_end = {.sa_handler = end};
	sigaction(SIGTERM, &on_end, NULL);
	sigaction(SIGINT, &on_end, NULL);
	for (;;)
		pause();
}
