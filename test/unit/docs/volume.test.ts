// The page on a pod's volume: where its parts are mounted, and what the driver says of a volume that it does not give.
import test from 'ava';
import { parsePublish } from '../../../src/agent/kubelet/csi/request.ts';
import { mountsOf } from '../../../src/api/csi-volume.ts';
import { quoted, readPage, rowsWith, section } from '../../support/docs.ts';
import { REFUSED } from '../agent/kubelet/csi-requests.ts';

const page = readPage('docs/reference/volume.md');

test('the table says where each part is mounted, as the webhook mounts it', (t) => {
  const rows = rowsWith(section(page, '## What it holds'), 'path', 'in a container', 'written');
  const documented = rows.flatMap((row) => quoted(row['in a container']).map((at) => [quoted(row.path)[0] ?? '', at]));
  const held = mountsOf('NAME').map(({ subPath, mountPath }) => [String(subPath), String(mountPath)]);
  t.deepEqual(documented.toSorted(), held.toSorted());
});

test('the folders that a tenant may write are those mounted for writing', (t) => {
  const rows = rowsWith(section(page, '## What it holds'), 'path', 'written');
  const documented = rows.filter(({ written }) => written === 'by the tenant').map(({ path }) => quoted(path)[0]);
  const held = mountsOf('NAME').flatMap(({ readOnly, subPath }) => (readOnly === true ? [] : [String(subPath)]));
  t.deepEqual(documented, held);
});

test('every sentence of a refusal is on the page', (t) => {
  const rows = rowsWith(section(page, '## When it is refused'), 'in the event, after `cotenant:`', 'what to do');
  const documented = rows.map((row) => quoted(row['in the event, after `cotenant:`']));
  t.true(REFUSED.length > 10);
  for (const [what, asked] of REFUSED) {
    const answer = parsePublish(asked, '/var/lib/kubelet');
    const sentence = answer.ok ? '' : answer.error;
    t.true(
      documented.some((parts) => parts.some((part) => sentence.includes(part))),
      `${what}: ${sentence}`,
    );
  }
});
