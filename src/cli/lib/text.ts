// Amounts, times and requests as text, the same in every command. Pure.

import {
  type ContainerRequest,
  type GpuShare,
  type MemoryAmount,
  namedIn,
  type PodRequest,
} from '../../api/request.ts';
import { MIB } from '../../common/quantity.ts';

export const mib = (bytes: number): string => `${Math.ceil(bytes / MIB)} MiB`;

/** Age as "5 min"; 0 if the server's clock is ahead. */
export function age(at: string | undefined, nowMs: number): string {
  const seconds = Math.max(0, Math.round((nowMs - Date.parse(at ?? '')) / 1000));
  if (Number.isNaN(seconds)) return 'unknown time';
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86_400)} d`;
}

const UNPRINTABLE = /[\p{Cc}\p{Cf}\u2028\u2029]+/gu;
const clipped = (text: string, most: number): string => (text.length > most ? `${text.slice(0, most)}…` : text);

/** One line without control characters: tenants choose names and messages of pods and containers. */
export const oneLine = (text: string, most = 1000): string => clipped(text.replace(UNPRINTABLE, ' ').trim(), most);

/** The same for one cell of a table, where leading blanks matter. */
export const oneCell = (text: string, most = 400): string => clipped(text.replace(UNPRINTABLE, ' '), most);

/** JSON for people and programs. Its own escapes leave control characters above 126 as they are. */
export const jsonText = (value: unknown): string => escaped(JSON.stringify(value, null, 2));

const escaped = (text: string): string =>
  text.replace(/(?!\n)[\p{Cc}\p{Cf}]/gu, (character) => {
    const units = Array.from({ length: character.length }, (_, at) => character.charCodeAt(at));
    return units.map((unit) => `\\u${unit.toString(16).padStart(4, '0')}`).join('');
  });

/** YAML for people and programs, which read it as 1.1 (kubectl) or 1.2: a text that either takes for another value, such as
 * `on`, is quoted, and so is one with a control character, which is escaped. */
export async function yamlText(value: unknown): Promise<string> {
  const { Document, visit } = await import('yaml');
  const document = new Document(value, { version: '1.1', compat: 'core', aliasDuplicateObjects: false });
  visit(document, {
    Scalar(_, node) {
      if (typeof node.value === 'string' && /[\p{Cc}\p{Cf}]/u.test(node.value)) node.type = 'QUOTE_DOUBLE';
    },
  });
  return escaped(document.toString({ lineWidth: 0, doubleQuotedMinMultiLineLength: Number.MAX_SAFE_INTEGER }));
}

function amount(memory: MemoryAmount): string {
  switch (memory.kind) {
    case 'bytes':
      return mib(memory.bytes);
    case 'units':
      return `${memory.units} units of ${mib(memory.unitBytes)}`;
    case 'percent':
      return `${memory.percent} % of the memory`;
    case 'whole':
      return 'the whole memory';
  }
}

function share({ memory, memoryLimit, coresPercent }: GpuShare): string {
  const limit = memoryLimit ? ` (limit ${amount(memoryLimit)})` : '';
  return `${amount(memory)}${limit}${coresPercent === undefined ? '' : ` and ${coresPercent} % of the compute`}`;
}

/** "4096 MiB of one GPU", "6144 MiB and 25 % of the compute of each of 2 GPUs" */
export function askedBy({ gpus }: Pick<ContainerRequest, 'gpus'>): string {
  const counts = new Map<string, number>();
  for (const gpu of gpus) counts.set(share(gpu), (counts.get(share(gpu)) ?? 0) + 1);
  return [...counts]
    .map(([text, count]) => `${text} of ${count === 1 ? 'one GPU' : `each of ${count} GPUs`}`)
    .join(', and ');
}

/** The request of a pod, container by container, and its choice of GPUs. */
export function askedByPod({ containers, gpuModels, gpuUuids }: PodRequest): string {
  const each = containers.map((container) => {
    const kind = container.kind === 'app' ? '' : ` (${container.kind})`;
    return `${container.name}${kind} asks for ${askedBy(container)}`;
  });
  const among = [
    ...(gpuModels.length > 0 ? [`of model ${namedIn(gpuModels, ' or ')}`] : []),
    ...(gpuUuids.length > 0 ? [`among ${namedIn(gpuUuids, ', ')}`] : []),
  ];
  return `${each.join('; ')}${among.length > 0 ? `; GPUs ${among.join(' ')}` : ''}`;
}
