// Which cards there are, and which instances of those that MIG divides: read anew every so often, each with a place of
// its own for as long as the sampler lives.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "../sampler.h"

namespace {
constexpr uint64_t EVERY_NS = 60000000000ull;
constexpr uint64_t LEAST_NS = 5000000000ull; // where something makes it look for what has changed
} // namespace

// Cards by UUID, so that integrals survive a new enumeration. The place of each, where it was known before.
size_t Sampler::add_card(nvml::Device device, const std::string &uuid) {
    size_t index = 0;
    while (index < cards_.size() && cards_[index].uuid != uuid) index++;
    if (index == cards_.size()) {
        cards_.emplace_back();
        cards_[index].uuid = uuid;
    }
    if (cards_[index].name.empty()) library_.device_text(device, "nvmlDeviceGetName", cards_[index].name);
    cards_[index].gone = false;
    return index;
}

// Handles of instances end when a card is divided anew, so all that is known of them is read again. What cannot be told
// stays as it was, and is soon asked for again.
void Sampler::add_instances(size_t parent) {
    std::vector<nvml::Device> devices;
    std::vector<std::pair<nvml::Device, std::string>> named;
    bool whole = true;
    // Of one that is lost nobody knows how it is divided: it stays as it was.
    if (cards_[parent].lost) return;
    if (cards_[parent].device) {
        const nvml::Division division = library_.instances(cards_[parent].device, devices, whole);
        if (division == nvml::Division::Unknown) {
            changed_ = true;
            return;
        }
        const bool is_divided = division == nvml::Division::Divided;
        if (is_divided != cards_[parent].divided) library_.ask_anew(cards_[parent].device);
        cards_[parent].divided = is_divided;
        cards_[parent].division_told = true;
    }
    for (nvml::Device device : devices) {
        std::string uuid;
        if (library_.device_text(device, "nvmlDeviceGetUUID", uuid)) named.emplace_back(device, uuid);
        else whole = false;
    }
    for (Card &card : cards_) {
        if (whole && card.instance && card.parent == parent) card.gone = true;
    }
    for (const auto &[device, uuid] : named) {
        const size_t index = add_card(device, uuid);
        Card &card = cards_[index];
        if (card.device != device) {
            card.activity.forget(library_);
            library_.ask_anew(device);
        }
        card.device = device;
        card.instance = true;
        card.parent = parent;
        card.pci = cards_[parent].pci;
        const bool has_numbers = library_.number(device, "nvmlDeviceGetGpuInstanceId", card.gpu_instance) &&
                                 library_.number(device, "nvmlDeviceGetComputeInstanceId", card.compute_instance);
        card.has_numbers = card.has_numbers || has_numbers;
        whole = whole && card.has_numbers;
    }
    std::vector<uint32_t> memories;
    for (Card &card : cards_) {
        if (!card.instance || card.parent != parent || card.gone || !card.has_numbers) continue;
        card.same_memory = std::find(memories.begin(), memories.end(), card.gpu_instance) != memories.end();
        memories.push_back(card.gpu_instance);
    }
    changed_ = changed_ || !whole;
}

// What was refused may have been so for a moment only.
void Sampler::read_facts(Card &card) {
    if (card.pci.empty()) library_.pci(card.device, card.pci);
    if (!card.has_minor) card.has_minor = library_.number(card.device, "nvmlDeviceGetMinorNumber", card.minor);
    if (!card.tells_events) card.tells_events = events_.watch(library_, card.device);
}

// Where the driver answers for each card that it counts, those that it does not count are gone. A card that it counts
// and says nothing of may be any of those known: then all stay.
void Sampler::read_inventory(uint64_t now_ns) {
    const uint64_t since = now_ns - inventory_ns_;
    if (inventory_ns_ != 0 && since < EVERY_NS && !(changed_ && since >= LEAST_NS)) return;
    std::vector<nvml::Device> devices;
    bool whole = false;
    if (driver_version_.empty()) driver_version_ = library_.text("nvmlSystemGetDriverVersion");
    if (cuda_version_ == 0) cuda_version_ = library_.cuda_version();
    if (!library_.devices(devices, whole)) return;
    inventory_ns_ = now_ns;
    changed_ = false;
    std::vector<size_t> listed;
    for (nvml::Device device : devices) {
        std::string uuid;
        if (!library_.device_text(device, "nvmlDeviceGetUUID", uuid)) {
            whole = false;
            continue;
        }
        const size_t index = add_card(device, uuid);
        listed.push_back(index);
        if (cards_[index].device != device) {
            cards_[index].activity.forget(library_);
            cards_[index].device = device;
            library_.ask_anew(device);
            cards_[index].pci.clear();
            cards_[index].has_minor = cards_[index].tells_events = false;
        }
        read_facts(cards_[index]);
    }
    for (size_t i = 0; whole && i < cards_.size(); i++) {
        Card &card = cards_[i];
        if (card.instance || std::find(listed.begin(), listed.end(), i) != listed.end()) continue;
        card.activity.forget(library_);
        card.gone = true;
        card.lost = false;
        card.device = nullptr; // the next one of this UUID is read from its beginning
    }
    // Behind them, so that cards are numbered as NVML numbers them.
    for (size_t i = 0, count = cards_.size(); i < count; i++) {
        if (!cards_[i].instance) add_instances(i);
    }
    for (Card &card : cards_) {
        if (card.gone) card.activity.forget(library_);
    }
}
