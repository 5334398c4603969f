// What a kubelet may ask of the CSI driver.
import test from 'ava';
import { ownerOf, type PublishRequest, readAsk } from '../../../src/agent/csi/request.ts';

const ROOT = '/var/lib/kubelet';
const UID = '0f3a9c1e-7d52-4b8e-9a61-3c5d7e9f1b20';
const OTHER = UID.replace('0f', '1f');
const placeOf = (uid: string, volume = 'cotenant') => `${ROOT}/pods/${uid}/volumes/kubernetes.io~csi/${volume}/mount`;
const CONTEXT = {
  'csi.storage.k8s.io/ephemeral': 'true',
  'csi.storage.k8s.io/pod.uid': UID,
  'csi.storage.k8s.io/pod.namespace': 'team',
  'csi.storage.k8s.io/pod.name': 'train-0.x',
  'csi.storage.k8s.io/serviceAccount.name': 'default',
};

const request = (
  context: Readonly<Record<string, string>> = {},
  rest: Partial<PublishRequest> = {},
): PublishRequest => ({
  target_path: placeOf(UID),
  readonly: false,
  volume_context: Object.fromEntries(
    Object.entries(context).reduce(
      (map, [key, value]) => map.set(`csi.storage.k8s.io/${key}`, value),
      new Map(Object.entries(CONTEXT)),
    ),
  ),
  ...rest,
});

test('an inline volume of a pod at its place is understood', (t) => {
  t.deepEqual(readAsk(request(), ROOT), { podUid: UID, namespace: 'team', pod: 'train-0.x', target: placeOf(UID) });
});

const REFUSED: readonly (readonly [what: string, PublishRequest, RegExp])[] = [
  ['no pod information', { ...request(), volume_context: {} }, /^the kubelet names no pod; .*podInfoOnMount: true$/],
  ['a pod without a name', request({ 'pod.name': '' }), /^the kubelet names no pod/],
  [
    'a static pod',
    request({ 'pod.uid': '0f3a9c1e7d524b8e9a613c5d7e9f1b20' }),
    /is no pod of an API server; static pods/,
  ],
  ['a uid that leads elsewhere', request({ 'pod.uid': '../../etc' }), /is no pod of an API server/],
  ['a namespace that leads elsewhere', request({ 'pod.namespace': '../x' }), /is no pod of an API server/],
  [
    'a volume that is not inline',
    request({ ephemeral: 'false' }),
    /^pod team\/train-0\.x asks for a volume that is not inline/,
  ],
  [
    'the place of another pod',
    request({}, { target_path: placeOf(OTHER) }),
    /is not where a volume of pod team\/train-0\.x lies$/,
  ],
  ['a place below another folder', request({}, { target_path: `/var/lib${placeOf(UID)}` }), /is not where/],
  ['a way out of the folder', request({}, { target_path: `${placeOf(UID)}/../../x/mount` }), /is not where/],
  ['another kind of volume', request({}, { target_path: placeOf(UID).replace('~csi', '~empty-dir') }), /is not where/],
  [
    'another name',
    request({}, { target_path: placeOf(UID, 'data') }),
    /^the volume "data" of pod team\/train-0\.x must be named "cotenant"/,
  ],
  ['a read-only volume', request({}, { readonly: true }), /must not be readOnly, for ledgers in it are written/],
];

for (const [what, asked, wrong] of REFUSED) {
  test(`refused with a sentence: ${what}`, (t) => {
    const answer = readAsk(asked, ROOT);
    t.regex('wrong' in answer ? answer.wrong : '', wrong);
  });
}

test('the owner of a place is known whatever the pod and its volume are called, for it must be given back', (t) => {
  t.deepEqual(ownerOf(placeOf(UID, 'data'), ROOT), { podUid: UID, volume: 'data' });
  t.deepEqual(ownerOf(placeOf('0f3a9c1e7d524b8e9a613c5d7e9f1b20'), ROOT)?.podUid, '0f3a9c1e7d524b8e9a613c5d7e9f1b20');
});

test('what is no place of an inline volume has no owner', (t) => {
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
