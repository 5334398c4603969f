// Which error of the addon makes the agent replace a limits page that processes may have mapped.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { createGrantFiles } from '../../../../src/agent/grants/files.ts';
import { type Native, PAGE_SIZE_MISMATCH } from '../../../../src/agent/os/addon.ts';
import { temporaryFolder } from '../../../support/native/node.ts';
import { loggerTo } from '../../../support/product/logger.ts';
import { grantOf } from '../node.ts';

const CASES = [
  ['a page of another size is replaced, whatever the text of the error', PAGE_SIZE_MISMATCH, 'xyz', true],
  ['no space left on the device leaves the page', undefined, 'limits page: its size: No space left on device', false],
  ['an I/O error leaves the page', 'EIO', 'limits page: the file has 8 bytes, expected 9', false],
] as const;
for (const [title, code, message, isReplaced] of CASES) {
  test(title, (t) => {
    const folder = temporaryFolder(t);
    const path = join(folder, 'limits');
    writeFileSync(path, 'before');
    let writes = 0;
    const native = {
      writePage() {
        writes += 1;
        // Twice: the page that is open, and the same file opened anew.
        if (writes <= 2) throw Object.assign(new Error(message), code !== undefined && { code });
      },
      initLedger() {},
      hasCompute: () => false,
    } as unknown as Native;
    const problems: string[] = [];
    const keeper = createGrantFiles({
      native,
      volumes: undefined,
      build: folder,
      wanted: undefined,
      pageOf: () => ({ slots: 1, isolateMemory: true, gpus: [] }),
      log: loggerTo(problems),
    });
    const grant = grantOf('one', 100);
    const files = keeper.open(grant, folder);
    t.teardown(() => files.page.close());
    if (isReplaced) keeper.putRight(grant, folder, files);
    else t.throws(() => keeper.putRight(grant, folder, files), { message });
    t.is(readFileSync(path, 'utf8'), isReplaced ? '' : 'before');
    t.is(problems.length, isReplaced ? 1 : 0, problems.join());
    t.deepEqual(readdirSync(folder).sort(), ['ledger', 'limits']);
  });
}
