// A test that needs something this machine may lack: it runs, or it is skipped under a name that says why.
import test, { type ImplementationFn } from 'ava';

/** `reason` undefined: a normal test; else a skipped one whose name carries the reason (printed again at the end). */
export function testUnless(reason: string | undefined): (title: string, body: ImplementationFn<[]>) => void {
  return (title, body) => {
    if (reason === undefined) test(title, body);
    else test.skip(`${title} (skipped: ${reason})`, body);
  };
}
