// A test that needs something this machine may lack: it runs, or it is skipped under a name that says why.
import { spawnSync } from 'node:child_process';
import test, { type ImplementationFn } from 'ava';

/** `reason` undefined: a normal test; else a skipped one whose name carries the reason (printed again at the end). */
export function testUnless(reason: string | undefined): (title: string, body: ImplementationFn<[]>) => void {
  return (title, body) => {
    if (reason === undefined) test(title, body);
    else test.skip(`${title} (skipped: ${reason})`, body);
  };
}

/** Why nothing can be mounted in a namespace of its own here, tried; undefined: it can. */
export function namespacesReason(): string | undefined {
  const trial = ['-m', '--propagation', 'private', 'mount', '-t', 'tmpfs', 'none', '/mnt'];
  const { error, status, stderr } = spawnSync('unshare', trial, { encoding: 'utf8' });
  if (status === 0) return undefined;
  return `needs root and mount namespaces: ${error?.message ?? stderr.trim().split('\n')[0]}`;
}
