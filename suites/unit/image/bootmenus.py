"""A boot menu for tests."""

from __future__ import annotations

#: A menu as grub-mkconfig 2.06 writes it: functions, a plain entry, a submenu, entries for recovery.
MENU = """\
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
fi
function load_video {
  insmod all_video
}
menuentry 'Debian GNU/Linux' --class debian --class os $menuentry_id_option 'gnulinux-simple-1234' {
  load_video
  if [ x$feature_platform_search_hint = xy ]; then
  search --no-floppy --fs-uuid --set=root  1234
  fi
  linux  /boot/vmlinuz-6.1.0-56-cloud-amd64 root=UUID=1234 ro quiet
  initrd  /boot/initrd.img-6.1.0-56-cloud-amd64
}
submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option 'gnulinux-advanced-1234' {
  menuentry 'Debian, with Linux 6.1.0-56' --class debian $menuentry_id_option 'gnulinux-56-advanced-1234' {
  linux  /boot/vmlinuz-6.1.0-56-cloud-amd64 root=UUID=1234 ro quiet
  }
  menuentry 'Debian, with Linux 6.1.0-55 (recovery mode)' $menuentry_id_option 'gnulinux-55-recovery-1234' {
  linux  /boot/vmlinuz-6.1.0-55-cloud-amd64 root=UUID=1234 ro single
  }
  menuentry 'Debian, with Linux 6.1.0-55' --class debian $menuentry_id_option 'gnulinux-55-advanced-1234' {
  linux  /boot/vmlinuz-6.1.0-55-cloud-amd64 root=UUID=1234 ro quiet
  }
}
menuentry 'UEFI Firmware Settings' $menuentry_id_option 'uefi-firmware' {
  fwsetup
}
"""
