/* The commands that ask or change a node that is already running. */
#pragma once

/* Exit code, or -1 when the words are not a command. */
int control_main(int argc, char **argv);
