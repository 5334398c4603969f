// Skips a test that needs something this machine lacks, under a title that gives the reason.
import { spawnSync } from 'node:child_process';
import test, { type ImplementationFn } from 'ava';

/** `reason` undefined: a normal test; else a skipped one whose title carries the reason, which is printed at the
 * end. */
export function testUnless(reason: string | undefined): (title: string, body: ImplementationFn<[]>) => void {
  return (title, body) => {
    if (reason === undefined) test(title, body);
    else test.skip(`${title} (skipped: ${reason})`, body);
  };
}

/** Tries to mount in a new namespace; returns why it is not possible here, or undefined. */
export function namespacesReason(): string | undefined {
  const trial = ['-m', '--propagation', 'private', 'mount', '-t', 'tmpfs', 'none', '/mnt'];
  const { error, status, stderr } = spawnSync('unshare', trial, { encoding: 'utf8' });
  if (status === 0) return undefined;
  return `needs root and mount namespaces: ${error?.message ?? stderr.trim().split('\n')[0]}`;
}
