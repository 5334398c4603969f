// What a kubelet may ask of the CSI driver.
import test from 'ava';
import { ownerOf, parsePublish } from '../../../../src/agent/kubelet/csi/request.ts';
import { ok } from '../../../../src/common/result.ts';
import { placeOf, REFUSED, ROOT, request, UID } from './csi-requests.ts';

test('an inline volume of a pod at its place is understood', (t) => {
  t.deepEqual(
    parsePublish(request(), ROOT),
    ok({
      podUid: UID,
      namespace: 'team',
      pod: 'train-0.x',
      target: placeOf(UID),
    }),
  );
});

for (const [what, asked, wrong] of REFUSED) {
  test(`refused with a sentence: ${what}`, (t) => {
    const answer = parsePublish(asked, ROOT);
    t.regex(answer.ok ? '' : answer.error, wrong);
  });
}

test('a volume path has its owner whatever pod and volume are called, for its removal', (t) => {
  t.deepEqual(ownerOf(placeOf(UID, 'data'), ROOT), { podUid: UID, volume: 'data' });
  t.deepEqual(ownerOf(placeOf('0f3a9c1e7d524b8e9a613c5d7e9f1b20'), ROOT)?.podUid, '0f3a9c1e7d524b8e9a613c5d7e9f1b20');
});

test('a path that belongs to no inline volume has no owner', (t) => {
  const place = placeOf(UID);
  const places = [
    '',
    '/',
    ROOT,
    placeOf('..'),
    placeOf(''),
    placeOf(UID, '..'),
    placeOf(UID, ''),
    `${place}/`,
    `${place}/..`,
    place.replace('/mount', ''),
    place.replace('/pods/', '//pods/'),
    place.replace('/pods/', '/pods/../pods/'),
    place.replace('volumes', 'volume-subpaths'),
    place.replace(ROOT, '/var/lib/kubelet2'),
  ];
  for (const path of places) t.is(ownerOf(path, ROOT), undefined, path);
});
