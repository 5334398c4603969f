// The page's own thread: a snapshot comes in, as it is or as the bytes of the other half, the finished page goes out as bytes, in the forms that are read. Rendering ten thousand
// series takes longer than a loop that also stops containers may be held up.
import { parentPort, workerData } from 'node:worker_threads';
import { gzipSync } from 'node:zlib';
import { materialFrom } from '../agent/snapshot/ipc/protocol.ts';
import type { Encoded, Material } from '../agent/snapshot/source.ts';
import { compatFamilies } from './compat/index.ts';
import { toOpenMetrics } from './format/openmetrics.ts';
import { createPage, FAMILIES, PROCESS_FAMILY } from './render.ts';

/** Which families a page has besides those that it always has. */
export type PageOptions = {
  readonly processes: boolean;
  /** Names of other exporters, with commas. */
  readonly compatibility: string;
  readonly nodeName: string;
};

export type PageForm = `${'text' | 'openmetrics'}${'' | '+gzip'}`;
export type PageRequest = {
  /** None: more forms of the page that was made last. */
  readonly rendering?: Material | Encoded;
  readonly forms: readonly PageForm[];
};
export type PageAnswer = {
  readonly bodies: readonly (readonly [PageForm, Uint8Array])[];
  readonly problems: readonly string[];
};

const { processes, compatibility, nodeName } = workerData as PageOptions;
const make = createPage([
  ...FAMILIES,
  ...(processes ? [PROCESS_FAMILY] : []),
  ...compatFamilies(compatibility, { nodeName }),
]);
let page = '';

/** Bytes in a buffer of their own: a pooled one must not be given away. */
function own(bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  const copy = new Uint8Array(new ArrayBuffer(bytes.byteLength));
  copy.set(bytes);
  return copy;
}

parentPort?.on('message', ({ rendering, forms }: PageRequest) => {
  const problems: string[] = [];
  if (rendering) {
    const { snapshot, own: ofProcess } = rendering instanceof Uint8Array ? materialFrom(rendering) : rendering;
    const made = make(snapshot);
    problems.push(...made.problems);
    page = `${made.text}${ofProcess}`;
  }
  const bodies = forms.map((form) => {
    const bytes = Buffer.from(form.startsWith('openmetrics') ? toOpenMetrics(page) : page);
    return [form, own(form.endsWith('+gzip') ? gzipSync(bytes, { level: 1 }) : bytes)] as const;
  });
  const answer: PageAnswer = { bodies, problems };
  parentPort?.postMessage(
    answer,
    bodies.map(([, { buffer }]) => buffer),
  );
});
