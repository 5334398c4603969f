// Requests of a kubelet for a volume, right and wrong ones.
import type { PublishRequest } from '../../../../src/agent/kubelet/csi/request.ts';

export const ROOT = '/var/lib/kubelet';
export const UID = '0f3a9c1e-7d52-4b8e-9a61-3c5d7e9f1b20';
const OTHER = UID.replace('0f', '1f');
export const placeOf = (uid: string, volume = 'cotenant') =>
  `${ROOT}/pods/${uid}/volumes/kubernetes.io~csi/${volume}/mount`;
const CONTEXT = {
  'csi.storage.k8s.io/ephemeral': 'true',
  'csi.storage.k8s.io/pod.uid': UID,
  'csi.storage.k8s.io/pod.namespace': 'team',
  'csi.storage.k8s.io/pod.name': 'train-0.x',
  'csi.storage.k8s.io/serviceAccount.name': 'default',
};

export const request = (
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

/** What is wrong with it, the request, and the sentence that says so. */
export const REFUSED: readonly (readonly [what: string, PublishRequest, RegExp])[] = [
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
