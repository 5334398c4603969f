// The mode of this node: what its agent's settings say, unless a label of its Node says another one. Whoever may label Nodes runs the
// cluster, so both directions are theirs. The label is kept on disk: an agent that starts anew must not stop anybody on a node
// that was switched off before it has heard of it.
import { join } from 'node:path';
import { ENFORCEMENT_ANNOTATION } from '../../api/names.ts';
import { MODES, type Mode } from '../../api/request.ts';
import { field } from '../../common/json.ts';
import { openStateFile, type StateFormat } from '../../common/state-file.ts';
import { parseMode } from '../../policy/mode.ts';

export type NodeMode = {
  mode(): Mode;
  /** Labels of the Node as they are now. */
  label(labels: Readonly<Record<string, string>>): void;
};

type Labeled = { readonly mode: Mode | undefined };

export const NODE_MODE_FORMAT: StateFormat<Labeled> = {
  version: 1,
  read(value) {
    const said = field(value, 'mode');
    const mode = parseMode(said);
    return said !== undefined && mode === undefined ? { wrong: 'its mode is none' } : { mode };
  },
};

/** `hears`: somebody will tell of labels; else what was kept of them is of another time. */
export function openNodeMode(
  {
    stateFolder,
    configured,
    hears,
  }: { readonly stateFolder: string; readonly configured: Mode; readonly hears: boolean },
  onProblem: (text: string) => void,
  onChange: (text: string) => void,
): NodeMode {
  const lost = `the node's mode is ${configured} until its labels are read`;
  const file = hears
    ? openStateFile(join(stateFolder, 'enforcement.json'), NODE_MODE_FORMAT, { lost, onProblem })
    : undefined;
  let labeled = file?.found?.mode;
  let told: string | undefined;
  return {
    mode: () => labeled ?? configured,
    label(labels) {
      const text = labels[ENFORCEMENT_ANNOTATION];
      const mode = parseMode(text);
      // A Node changes all the time, mostly in other ways.
      if (text !== undefined && mode === undefined && text !== told)
        onProblem(
          `label ${ENFORCEMENT_ANNOTATION} of this node says "${text}", which is none of ${MODES.join(', ')}, and is passed over`,
        );
      told = text;
      if (mode === labeled) return;
      labeled = mode;
      onChange(
        mode === undefined
          ? `the mode of this node is ${configured} again, by the agent's settings`
          : `the mode of this node is ${mode}, by its label`,
      );
      try {
        file?.write({ mode });
      } catch (error) {
        onProblem(`the mode of this node is not kept for the next agent: ${(error as Error).message}`);
      }
    },
  };
}
