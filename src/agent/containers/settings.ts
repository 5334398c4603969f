// Settings of containers without a pod: the slices file, and where CDI specifications are.
import * as v from 'valibot';
import { nonEmpty } from '../../common/schema.ts';
import { FOLDERS_WANTED, isFolders } from '../kubelet/settings.ts';

export const SliceSettings = v.object({
  /** The slices that this machine keeps; a file that is missing has none. */
  file: v.optional(v.string('a file, or nothing'), '/etc/cotenant/slices.yaml'),
  /** Kind of NVIDIA's CDI devices, each named by a GPU's UUID. */
  cdiKind: v.optional(nonEmpty('vendor/class'), 'nvidia.com/gpu'),
  /** The engines' CDI folders, with commas. The last one is written to. */
  cdiFolders: v.optional(v.pipe(v.string(FOLDERS_WANTED), v.check(isFolders, FOLDERS_WANTED)), '/etc/cdi,/var/run/cdi'),
});
export type SliceSettings = Readonly<v.InferOutput<typeof SliceSettings>>;
