// In a mount namespace of its own, with a small disk at the given folder: a disk that fills up, has free space again,
// and what an agent after that reads.
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { recordOf } from '../../../../src/agent/enforcement/action-record.ts';
import { openAudit } from '../../../../src/agent/enforcement/audit-log.ts';
import { loggerTo } from '../../../support/product/logger.ts';
import { grantOf } from '../../../unit/agent/node.ts';

const [folder = ''] = process.argv.slice(2);
const filler = join(folder, 'filler');
writeFileSync(filler, Buffer.alloc(20 * 1024));
const reported: string[] = [];
const audit = openAudit(folder, loggerTo(reported));
const grant = grantOf('one', 100, [0], { pod: 'p'.repeat(3000) });
let at = 0;
const add = () => {
  at += 1;
  audit.add(recordOf({ grant, action: 'kill', verdict: { severity: 'within' }, atMs: at, result: 'sent' }));
};
while (reported.length === 0) add();
add();
const full = reported.map((text) => text.slice(0, 40));
const before = openAudit(folder, loggerTo(reported)).recent().length;
rmSync(filler);
audit.retry();
add();
const unread: string[] = [];
const after = openAudit(folder, loggerTo(unread));
const times = after.recent().map(({ atMs }) => atMs);
process.stdout.write(JSON.stringify({ added: at, full, before, times, unread }));
