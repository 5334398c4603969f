/* The commands that query or change a running node. */
#pragma once

/* Returns the exit code, or -1 when the arguments are not a command. */
int control_main(int argc, char **argv);
